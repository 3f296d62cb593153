"""Launch parameters of causal_conv, and the variants to compile."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from prefill_kernels.causal_conv.kernel import causal_conv_kernel
from prefill_kernels.variant import TypeSpec, Variant

BLOCK_TOKENS = 16
BLOCK_CHANNELS = 128
NUM_WARPS = 4

_LAYERS = {
    "8192 channels": {"C": 8192, "FIRST": 2048, "SECOND": 2048, "W": 4, "SILU": True},
    "6144 channels, bias": {"C": 6144, "FIRST": 4096, "SECOND": 1024, "W": 4, "SILU": True},
    "2048 channels, no SiLU": {"C": 2048, "FIRST": 2048, "SECOND": 0, "W": 3, "SILU": False},
}
"""Of Qwen3.5-4B, Nemotron 3 Nano and LFM2-1.2B."""


def variants() -> Iterator[Variant]:
    """Layers of models in half precision."""
    for dtype, (name, layer) in product(("bf16", "fp16"), _LAYERS.items()):
        floats = ["x", "held", "weight", "first"]
        constexprs: dict[str, Any] = {**layer, "BLOCK_T": BLOCK_TOKENS, "BLOCK_C": BLOCK_CHANNELS}
        is_there = {"bias": "bias" in name, "second": layer["SECOND"] > 0}
        is_there["third"] = layer["C"] > layer["FIRST"] + layer["SECOND"]
        for argument, there in is_there.items():
            if there:
                floats.append(argument)
            else:
                constexprs[argument] = None
        signature: dict[str, TypeSpec] = dict.fromkeys(floats, f"*{dtype}:16")
        signature |= {"order": "*i32:16", "previous": "*i32:16"}
        signature |= {"x_stride": "i32:16", "num_tokens": "i32"}
        yield Variant(
            f"{dtype}, {name}", causal_conv_kernel, signature, constexprs, num_warps=NUM_WARPS
        )
