"""Compile SGLang's fused kernel of experts for Hopper, with every block that can be chosen.

``python -m bench.kernels.expert_compilation`` prints the last lines of docs/kernels.csv; no GPU is
needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import triton.language as tl
from prefill_kernels.compilation import Compiled, compile_variant, lines_of
from prefill_kernels.variant import TypeSpec, Variant

from bench.kernels.expert_tunings import TUNINGS, Entry, Tuning

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's, about kernels that a machine lacks
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import fused_moe_kernel

TYPES = {"bf16": "bf16", "fp8": "fp8e4nv"}
DEFAULT_WARPS, DEFAULT_STAGES = 4, 3
"""Triton's defaults, for entries that do not name these values."""


@cache
def compile_experts() -> tuple[Compiled, ...]:
    """Compile both products with every candidate; the result is cached per process."""
    return tuple(compile_variant("fused_moe_kernel", variant) for variant in variants())


def variants() -> Iterator[Variant]:
    for tuning in TUNINGS:
        for up, down in tuning.chosen():
            by_tma = bool(down.get("USE_TMA"))
            yield _variant(tuning, up, down=False, by_tma=by_tma)
            yield _variant(tuning, down, down=True, by_tma=by_tma)


def _variant(tuning: Tuning, entry: Entry, *, down: bool, by_tma: bool) -> Variant:
    """Return the variant that `invoke_fused_moe_kernel` launches on Hopper.

    Args:
        by_tma: whether the down-projection reads its input by TMA, in the order of the blocks in
            which the first product has written it.
    """
    shape, blocks = tuning.shape, {name: entry[name] for name in entry if name.isupper()}
    blocks.pop("USE_TMA", None)
    # The rule of `should_enable_swap_ab` on Hopper, which is for FP8.
    is_swapped = tuning.scaled > 0 and blocks["BLOCK_SIZE_M"] < 64 <= blocks["BLOCK_SIZE_N"]
    off: tuple[str, ...] = ("use_int8_w8a8", "use_int8_w8a16", "per_channel_quant")
    off += ("FUSE_ADD_TO_OUTPUT", "MASK_OUTPUT", "FUSE_SUM_ALL_REDUCE", "FUSE_SWIGLU", "GDC_EARLY")
    constants: dict[str, Any] = {
        "add_mask_ptr": None,
        **dict.fromkeys(("stride_ak", "stride_bk", "stride_cn"), 1),
        **dict.fromkeys(off, False),
        **blocks,
        **dict.fromkeys(("group_n", "group_k"), tuning.scaled),
        "MUL_ROUTED_WEIGHT": down,
        "top_k": 1 if down else shape.top_k,
        "compute_type": tl.bfloat16,
        "use_fp8_w8a8": tuning.scaled > 0,
        "even_Ks": (shape.width if down else shape.hidden) % blocks["BLOCK_SIZE_K"] == 0,
        "c_sorted": by_tma and not down,
        "swap_ab": is_swapped,
        "ROUTER_TOPK": shape.top_k if down else 1,
        "USE_GDC": True,
        "A_OUTPUT_SLICES": 1,
        "A_OUTPUT_SLICE_WIDTH": 0,
        "A_OUTPUT_SLICE_K": 0,
    }
    aligned = ("sorted_token_ids_ptr", "expert_ids_ptr", "num_tokens_post_padded_ptr")
    signature: dict[str, TypeSpec] = {
        **dict.fromkeys(("a_ptr", "b_ptr"), f"*{TYPES[tuning.weights]}:16"),
        "c_ptr": "*bf16:16",
        "topk_weights_ptr": "*fp32:16",
        **dict.fromkeys(aligned, "*i32:16"),
        "EM": "i32",
    }
    if tuning.scaled:
        signature |= dict.fromkeys(("a_scale_ptr", "b_scale_ptr"), "*fp32:16")
        constants |= dict.fromkeys(("stride_ask", "stride_bsk"), 1)
        signature |= dict.fromkeys(("stride_asm", "stride_bse", "stride_bsn"), "i32")
    else:
        constants |= dict.fromkeys(("a_scale_ptr", "b_scale_ptr"))
    if tuning.has_bias:
        signature |= {"bias_ptr": "*bf16:16"}
        constants |= {"stride_bias_n": 1}
    else:
        constants |= {"bias_ptr": None}
    if by_tma and down:
        rows, columns, depth = (blocks[f"BLOCK_SIZE_{axis}"] for axis in "MNK")
        kind = TYPES[tuning.weights]
        signature |= {"a_desc": f"tensordesc<{kind}[{rows}, {depth}]>"}
        signature |= {"b_desc": f"tensordesc<{kind}[1, {columns}, {depth}]>"}
    else:
        constants |= dict.fromkeys(("a_desc", "b_desc"))
    known = {*signature, *constants}
    # All other arguments are sizes and strides, which are multiples of 16 for these shapes.
    signature |= {name: "i32:16" for name in fused_moe_kernel.arg_names if name not in known}
    product = "down" if down else "up and gate"
    what = f"{shape.name}, {tuning.weights}, {blocks['BLOCK_SIZE_M']} rows, {product}"
    return Variant(
        f"{what}, TMA" if by_tma else what,
        fused_moe_kernel,
        signature,
        constants,
        num_warps=entry.get("num_warps", DEFAULT_WARPS),
        num_stages=entry.get("num_stages", DEFAULT_STAGES),
        needs_wgmma=blocks["BLOCK_SIZE_M"] >= 64 or is_swapped,
    )


def report() -> str:
    """The last lines of docs/kernels.csv."""
    return lines_of(compile_experts())


def main() -> None:
    print(report(), end="")


if __name__ == "__main__":
    main()
