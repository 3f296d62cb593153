"""Small packed forwards as graphs: one launch instead of some hundred."""
