"""The benchmark of scores: ``python -m bench``."""
