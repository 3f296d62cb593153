"""Launch parameters of merge_state on Hopper, and the variants to compile."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton

from prefill_kernels.merge_state.kernel import merge_parts_kernel, merge_states_kernel
from prefill_kernels.variant import TypeSpec, Variant

TILE_BYTES = 8192
"""Bytes that a program reads of each part: four 16-byte loads per thread are in flight."""


@dataclass(frozen=True)
class Config:
    """Launch parameters.

    Attributes:
        block_pairs: (token, head) pairs of one program.
        block_dim: the head size, rounded up to a power of two.
        num_warps: warps of one program.
    """

    block_pairs: int
    block_dim: int
    num_warps: int = 4


def config_for(head_dim: int, dtype: torch.dtype) -> Config:
    """The launch parameters of parts `[tokens, heads, head_dim]` of this dtype."""
    block_dim: int = triton.next_power_of_2(head_dim)
    return Config(max(1, TILE_BYTES // (block_dim * dtype.itemsize)), block_dim)


def variants() -> Iterator[Variant]:
    """Two, four and any number of parts; a head size that is a power of two and one that is not."""
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
        for head_dim in (80, 128):
            for parts in (2, 4):
                yield _variant(name, dtype, head_dim, parts)
    for head_dim in (80, 128):
        yield _variant("bf16", torch.bfloat16, head_dim, None)


def _variant(name: str, dtype: torch.dtype, head_dim: int, parts: int | None) -> Variant:
    """The variant for `parts` tensors; None: for any number of parts in one tensor."""
    config = config_for(head_dim, dtype)
    pointer, strides = f"*{name}:16", ("i32:16", "i32:16")
    signature: dict[str, TypeSpec] = {
        "merged": pointer,
        "merged_strides": strides,
        "merged_lse": "*fp32:16",
        "merged_lse_strides": ("i32", "i32"),
        "num_pairs": "i32",
        "heads": "i32",
    }
    if parts is None:
        signature |= {"outs": pointer, "out_strides": ("i32:16", *strides)}
        signature |= {"lses": "*fp32:16", "lse_strides": ("i32:16", "i32", "i32")}
        signature["num_parts"] = "i32"
    else:
        signature |= {"outs": (pointer,) * parts, "out_strides": (strides,) * parts}
        signature["lses"] = ("*fp32:16",) * parts
    return Variant(
        f"{parts or 'any'} parts, {name}, head size {head_dim}",
        merge_parts_kernel if parts is None else merge_states_kernel,
        signature,
        {
            "HEAD_DIM": head_dim,
            "BLOCK_PAIRS": config.block_pairs,
            "BLOCK_DIM": config.block_dim,
        },
        num_warps=config.num_warps,
        num_stages=1,
        needs_wgmma=False,
    )
