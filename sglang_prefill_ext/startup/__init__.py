"""Checks and forwards that run before the first request. Neither torch nor SGLang."""
