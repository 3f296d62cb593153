"""Small models made on the spot, offline: random ones for parity, and a trained ranker."""

from sglang_prefill_ext.modelmaker.maker import make_model

__all__ = ["make_model"]
