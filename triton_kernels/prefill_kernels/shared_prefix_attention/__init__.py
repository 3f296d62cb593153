"""Attention of packed rows to their shared prefix and to themselves, in one launch."""

from prefill_kernels.shared_prefix_attention.arguments import CachedKV, KeyParts, TilePlan
from prefill_kernels.shared_prefix_attention.configs import PROGRAMS_OF_A_PROCESSOR
from prefill_kernels.shared_prefix_attention.op import block_tokens, shared_prefix_attention

__all__ = [
    "PROGRAMS_OF_A_PROCESSOR",
    "CachedKV",
    "KeyParts",
    "TilePlan",
    "block_tokens",
    "shared_prefix_attention",
]
