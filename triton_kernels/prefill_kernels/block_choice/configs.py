"""How block_choice is launched, and the variant that it is compiled in."""

from collections.abc import Iterator

from prefill_kernels.block_choice.kernel import block_choice_kernel
from prefill_kernels.variant import TypeSpec, Variant

CHUNK = 1024
"""Blocks that are read at once."""

NUM_WARPS = 4


def variants() -> Iterator[Variant]:
    """There is one: sizes of blocks and times are numbers of the launch."""
    signature: dict[str, TypeSpec] = {}
    for side in ("first", "second"):
        signature |= {f"{side}_{name}": "*i32:16" for name in ("experts", "padded")}
        signature |= {f"{side}_block": "i32", f"{side}_fixed": "fp32", f"{side}_row": "fp32"}
    yield Variant(
        "any blocks",
        block_choice_kernel,
        signature,
        {"CHUNK": CHUNK},
        num_warps=NUM_WARPS,
        num_stages=1,
        needs_wgmma=False,
    )
