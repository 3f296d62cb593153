"""SGLang's loaded model, as packed forwards call it."""
