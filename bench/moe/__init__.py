"""Blocks of experts compared by prediction, over synthetic and recorded routing."""
