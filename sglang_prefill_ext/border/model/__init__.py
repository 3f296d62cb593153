"""SGLang's loaded model as packed forwards call it, and the choice of blocks for its experts."""
