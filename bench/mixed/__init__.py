"""Measure prompts of mixed lengths on real servers: how much long ones slow down short ones."""
