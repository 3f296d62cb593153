"""Launch parameters of block_choice, and the variant to compile."""

from collections.abc import Iterator

from prefill_kernels.block_choice.kernel import block_choice_kernel
from prefill_kernels.variant import TypeSpec, Variant

CHUNK = 1024
"""Blocks that the program reads in one step."""

NUM_WARPS = 4


def variants() -> Iterator[Variant]:
    """The only variant: block sizes and times are run-time arguments."""
    signature: dict[str, TypeSpec] = {}
    for side in ("first", "second"):
        signature |= {f"{side}_{name}": "*i32:16" for name in ("experts", "padded")}
        signature |= {f"{side}_block": "i32", f"{side}_fixed": "fp32", f"{side}_row": "fp32"}
    yield Variant(
        "any blocks", block_choice_kernel, signature, {"CHUNK": CHUNK}, num_warps=NUM_WARPS
    )
