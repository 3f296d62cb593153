"""Embeddings of the user's own in place of tokens."""
