"""Attention of one packed forward: rows see their shared prefix and themselves, nothing else."""
