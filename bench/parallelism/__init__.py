"""Replicas or tensor-parallel ranks: what `sglang-prefill plan` predicts, beside measurements."""
