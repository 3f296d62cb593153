"""SGLang without a GPU: the CPU platform, and what SGLang lacks there."""
