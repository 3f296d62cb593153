"""What SGLang's fused kernel of experts compiles to on Hopper, in every block that can be chosen.

``python -m bench.kernels.expert_compilation`` prints the last lines of docs/kernels.csv; no GPU is
needed. The shape is Qwen3-30B-A3B, at the tokens of a ranking request.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import triton.language as tl
from prefill_kernels.compilation import Compiled, compile_variant, lines_of
from prefill_kernels.variant import TypeSpec, Variant

from bench.moe.shapes import SHAPES
from sglang_prefill_ext.moe.blocks import BlockTable

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's, about kernels that a machine lacks
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import fused_moe_kernel
    from sglang.srt.layers.moe.moe_runner import triton_utils

QWEN3, TOKENS = SHAPES[0], 2304


class Weights(NamedTuple):
    """One dtype of the weights.

    Attributes:
        file: of SGLang's tuning.
        scaled: side of the blocks of weights that share a scale; 0 for none.
    """

    name: str
    file: str
    pointer: str
    scaled: int


WEIGHTS = (
    Weights("bf16", "triton_3_7_1/E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3", "*bf16:16", 0),
    Weights(
        "fp8",
        "triton_3_2_0/E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128]",
        "*fp8e4nv:16",
        128,
    ),
)


@cache
def compile_experts() -> tuple[Compiled, ...]:
    """Both products in every candidate; once a process."""
    return tuple(compile_variant("fused_moe_kernel", variant) for variant in variants())


def variants() -> Iterator[Variant]:
    for weights in WEIGHTS:
        tuned = _tuned(weights)
        table = BlockTable({int(key): each["BLOCK_SIZE_M"] for key, each in tuned.items()})
        for entry in table.candidates(TOKENS):
            for down in (False, True):
                yield _variant(weights, dict(tuned[str(entry.tokens)]), down)


def _tuned(weights: Weights) -> dict[str, dict[str, Any]]:
    file = Path(triton_utils.__file__).parent / "configs" / f"{weights.file}.json"
    tuned: dict[str, dict[str, Any]] = json.loads(file.read_text())
    return tuned


def _variant(weights: Weights, entry: dict[str, Any], down: bool) -> Variant:
    """As `invoke_fused_moe_kernel` launches it on Hopper."""
    depth = QWEN3.width if down else QWEN3.hidden
    num_warps, num_stages = entry.pop("num_warps"), entry.pop("num_stages")
    absent = ("a_desc", "b_desc", "bias_ptr", "add_mask_ptr")
    # The rule of `should_enable_swap_ab` on Hopper, which is for FP8.
    is_swapped = weights.scaled > 0 and entry["BLOCK_SIZE_M"] < 64 <= entry["BLOCK_SIZE_N"]
    off = ("use_int8_w8a8", "use_int8_w8a16", "per_channel_quant", "c_sorted")
    off += ("FUSE_ADD_TO_OUTPUT", "MASK_OUTPUT", "FUSE_SUM_ALL_REDUCE", "FUSE_SWIGLU", "GDC_EARLY")
    constants: dict[str, Any] = {
        **dict.fromkeys(absent),
        **dict.fromkeys(("stride_ak", "stride_bk", "stride_cn"), 1),
        **dict.fromkeys(off, False),
        **entry,
        **dict.fromkeys(("group_n", "group_k"), weights.scaled),
        "MUL_ROUTED_WEIGHT": down,
        "top_k": 1 if down else QWEN3.top_k,
        "compute_type": tl.bfloat16,
        "use_fp8_w8a8": weights.scaled > 0,
        "even_Ks": depth % entry["BLOCK_SIZE_K"] == 0,
        "swap_ab": is_swapped,
        "ROUTER_TOPK": QWEN3.top_k if down else 1,
        "USE_GDC": True,
        "A_OUTPUT_SLICES": 1,
        "A_OUTPUT_SLICE_WIDTH": 0,
        "A_OUTPUT_SLICE_K": 0,
    }
    signature: dict[str, TypeSpec] = {
        **dict.fromkeys(("a_ptr", "b_ptr"), weights.pointer),
        "c_ptr": "*bf16:16",
        "topk_weights_ptr": "*fp32:16",
        **dict.fromkeys(
            ("sorted_token_ids_ptr", "expert_ids_ptr", "num_tokens_post_padded_ptr"), "*i32:16"
        ),
        "EM": "i32",
    }
    if weights.scaled:
        signature |= dict.fromkeys(("a_scale_ptr", "b_scale_ptr"), "*fp32:16")
        constants |= dict.fromkeys(("stride_ask", "stride_bsk"), 1)
        signature |= dict.fromkeys(("stride_asm", "stride_bse", "stride_bsn"), "i32")
    else:
        constants |= dict.fromkeys(("a_scale_ptr", "b_scale_ptr"))
    known = {*signature, *constants}
    # What is left are sizes and strides that the shape makes multiples of 16.
    signature |= {name: "i32:16" for name in fused_moe_kernel.arg_names if name not in known}
    product = "down" if down else "up and gate"
    return Variant(
        f"{weights.name}, {entry['BLOCK_SIZE_M']} rows, {product}",
        fused_moe_kernel,
        signature,
        constants,
        num_warps=num_warps,
        num_stages=num_stages,
        needs_wgmma=entry["BLOCK_SIZE_M"] >= 64 or is_swapped,
    )


def report() -> str:
    """The last lines of docs/kernels.csv."""
    return lines_of(compile_experts())


def main() -> None:
    print(report(), end="")


if __name__ == "__main__":
    main()
