"""Launch parameters of causal_conv, and the variants to compile."""

from collections.abc import Iterator

from prefill_kernels.causal_conv.kernel import causal_conv_kernel
from prefill_kernels.variant import TypeSpec, Variant

BLOCK_TOKENS = 16
BLOCK_CHANNELS = 128

NUM_WARPS = 4


def variants() -> Iterator[Variant]:
    """One forward of several groups in bfloat16, and one of a single group in float16."""
    for dtype, is_ordered in (("bf16", True), ("fp16", False)):
        pointer = f"*{dtype}:16"
        signature: dict[str, TypeSpec] = dict.fromkeys(
            ("x", "held", "weight", "queries", "keys", "values"), pointer
        )
        signature |= {"x_stride": "i32:16", "previous": "*i32:16", "num_tokens": "i32"}
        constexprs: dict[str, int | None] = {"C": 8192, "KEYS": 2048, "W": 4, "bias": None}
        constexprs |= {"BLOCK_T": BLOCK_TOKENS, "BLOCK_C": BLOCK_CHANNELS}
        if is_ordered:
            signature["order"] = "*i32:16"
        else:
            constexprs["order"] = None
        yield Variant(
            f"{dtype}, {'several groups' if is_ordered else 'one group'}",
            causal_conv_kernel,
            signature,
            constexprs,
            num_warps=NUM_WARPS,
            num_stages=1,
            needs_wgmma=False,
        )
