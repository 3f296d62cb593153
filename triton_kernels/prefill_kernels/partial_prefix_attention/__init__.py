"""Attention of packed rows to their shared prefix only: one half of the merge."""

from prefill_kernels.partial_prefix_attention.op import block_tokens, partial_prefix_attention
from prefill_kernels.partial_prefix_attention.reference import partial_prefix_attention_reference

__all__ = ["block_tokens", "partial_prefix_attention", "partial_prefix_attention_reference"]
