"""CUDA graphs of small packed forwards: one launch instead of some hundred."""
