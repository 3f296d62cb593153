"""A GPU that is only pretended, for programs that run SGLang's scheduler on it."""
