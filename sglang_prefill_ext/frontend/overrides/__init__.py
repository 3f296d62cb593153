"""Embeddings that come with a call and replace those of some of its tokens."""
