"""Texts to token ids: the ways of stock SGLang and of the extension, without a server."""
