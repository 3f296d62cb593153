"""SGLang's recurrent layers, as packed forwards compute them."""
