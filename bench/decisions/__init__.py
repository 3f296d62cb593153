"""Prefill-only requests other than scoring: embeddings, single tokens, prompt log-probs."""
