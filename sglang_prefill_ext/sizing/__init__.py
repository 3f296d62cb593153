"""Predicts what a model needs of devices, and how best to divide it over several. Pure."""
