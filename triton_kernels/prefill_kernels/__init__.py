"""Triton kernels of prefill-only serving; imports torch and triton only."""
