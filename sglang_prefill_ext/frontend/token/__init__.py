"""Calls for log-probs and single tokens: their bodies, packed requests and answers."""
