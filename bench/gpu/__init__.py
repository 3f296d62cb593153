"""Measures one model on a GPU in one go: scores, tokens, and where the device's time goes."""
