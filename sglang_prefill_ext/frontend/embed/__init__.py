"""Calls for vectors: their bodies, packed requests and answers."""
