"""Scoring calls: their bodies, packed requests and answers."""
