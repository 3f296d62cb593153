"""The comparison of both paths before the first request. Neither torch nor SGLang."""
