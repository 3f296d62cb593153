"""Launch parameters of causal_conv, and the variants to compile."""

from collections.abc import Iterator

from prefill_kernels.causal_conv.kernel import causal_conv_kernel
from prefill_kernels.variant import TypeSpec, Variant

BLOCK_TOKENS = 16
BLOCK_CHANNELS = 128

NUM_WARPS = 4


def variants() -> Iterator[Variant]:
    """A layer of Qwen3.5-4B in half precision; its convolution has no bias."""
    for dtype in ("bf16", "fp16"):
        floats = ("x", "held", "weight", "first", "second", "third")
        signature: dict[str, TypeSpec] = dict.fromkeys(floats, f"*{dtype}:16")
        signature |= {"order": "*i32:16", "previous": "*i32:16"}
        signature |= {"x_stride": "i32:16", "num_tokens": "i32"}
        constexprs = {"bias": None, "C": 8192, "FIRST": 2048, "SECOND": 2048, "W": 4, "SILU": True}
        yield Variant(
            f"{dtype}, 8192 channels",
            causal_conv_kernel,
            signature,
            constexprs | {"BLOCK_T": BLOCK_TOKENS, "BLOCK_C": BLOCK_CHANNELS},
            num_warps=NUM_WARPS,
            num_stages=1,
            needs_wgmma=False,
        )
