"""Launch parameters of merge_state on Hopper, and the variants to compile."""

from collections.abc import Iterator

import torch
import triton

from prefill_kernels.merge_state.kernel import merge_parts_kernel, merge_states_kernel
from prefill_kernels.variant import TypeSpec, Variant

TILE_BYTES = 8192
"""Bytes that a program reads of each part: four 16-byte loads per thread are in flight."""

NUM_WARPS = 4


def constexprs(head_dim: int, dtype: torch.dtype) -> dict[str, int]:
    """The kernels' compile-time sizes for parts `[tokens, heads, head_dim]` of this dtype."""
    block_dim = triton.next_power_of_2(head_dim)
    return {
        "HEAD_DIM": head_dim,
        "BLOCK_PAIRS": max(1, TILE_BYTES // (block_dim * dtype.itemsize)),
        "BLOCK_DIM": block_dim,
    }


def variants() -> Iterator[Variant]:
    """Two and any number of parts; a head size that is a power of two and one that is not."""
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
        for head_dim in (80, 128):
            yield _variant(name, dtype, head_dim, 2)
    for head_dim in (80, 128):
        yield _variant("bf16", torch.bfloat16, head_dim, None)


def _variant(name: str, dtype: torch.dtype, head_dim: int, parts: int | None) -> Variant:
    """The variant for `parts` tensors; None: for any number of parts in one tensor."""
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
        constexprs(head_dim, dtype),
        num_warps=NUM_WARPS,
    )
