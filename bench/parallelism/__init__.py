"""Compare the predictions of `sglang-prefill plan` for replicas and ranks with measurements."""
