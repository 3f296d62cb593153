"""Requests that end with their prompts, beside scoring: vectors, single tokens, log-probs."""
