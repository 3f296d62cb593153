"""SGLang's server arguments: our flags, and the combinations that are refused."""
