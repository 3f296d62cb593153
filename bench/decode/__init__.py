"""Generations beside packed load on real servers."""
