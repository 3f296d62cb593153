"""Hooks on SGLang's server arguments: the flags, and what they refuse."""
