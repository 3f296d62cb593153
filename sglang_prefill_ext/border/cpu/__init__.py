"""SGLang without a GPU: our CPU platform, and replacements for what SGLang lacks there."""
