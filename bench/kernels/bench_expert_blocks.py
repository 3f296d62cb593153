"""Time SGLang's Triton experts with every block of rows that its tuned table has for the shape.

Run as ``python -m bench.kernels.bench_expert_blocks``. It times whole layers in bfloat16: both
products, the activation and the sum over experts. The first way of a case is SGLang's own choice.
The last way launches kernels for two blocks; the device runs the one with fewer padded rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.kernels.harness import Build, Case, Way, cuda_device, measure
from bench.moe.routing import drawn, recorded
from bench.moe.shapes import SHAPES, Shape
from sglang_prefill_ext.moe.policy import BlockTime, Choice, Pair

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's, about kernels that a machine lacks
    from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe, fused_moe_triton_config

    from sglang_prefill_ext.border.model.expert_hook import (
        EXPERTS,
        Call,
        with_both_entries,
        with_chosen_block,
    )
    from sglang_prefill_ext.border.model.expert_layers import rows_by_tma, table_of

DTYPE = torch.bfloat16
TOKENS = (256, 576, 1152, 2304, 4608)
FLAGS: dict[str, Any] = {
    **dict.fromkeys(("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16"), False),
    "per_channel_quant": False,
    "block_shape": None,
}
SETTINGS = SimpleNamespace(
    deterministic=SimpleNamespace(enable_deterministic_inference=False),
    moe=SimpleNamespace(enable_fused_moe_sum_all_reduce=False),
)
"""The server settings that SGLang's experts read."""


def main() -> None:
    torch.manual_seed(0)
    device = cuda_device()
    with hooked():
        measure(cases(device))


@contextmanager
def hooked() -> Iterator[None]:
    """SGLang's experts with our hook, without a server around them."""
    hooks = (
        ("_prepare_fused_moe_run", with_chosen_block),
        ("invoke_fused_moe_kernel", with_both_entries),
    )
    with ExitStack() as changes:
        for module in (fused_moe, fused_moe_triton_config):
            changes.enter_context(patch.object(module, "get_exec", lambda: SETTINGS))
        for name, hook in hooks:
            around = partial(hook, getattr(fused_moe, name))
            changes.enter_context(patch.object(fused_moe, name, around))
        yield


def cases(device: torch.device) -> Iterator[Case]:
    for shape in SHAPES:
        weights = weights_of(shape, device)
        for kind, tokens in product(("uniform", "zipf"), TOKENS):
            (forward,) = drawn(kind, shape.experts, shape.top_k, tokens, 1, seed=0)
            yield make_case(shape, kind, forward.counts[0], weights)
        for forward in recorded(shape.experts, shape.top_k):
            yield make_case(shape, "recorded", forward.counts[0], weights)


def weights_of(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random weights of the joint up- and gate-projection, and of the down-projection."""
    up = torch.randn(shape.experts, 2 * shape.width, shape.hidden, dtype=DTYPE, device=device)
    down = torch.randn(shape.experts, shape.hidden, shape.width, dtype=DTYPE, device=device)
    return up.mul_(shape.hidden**-0.5), down.mul_(shape.width**-0.5)


def make_case(
    shape: Shape, routing: str, rows: NDArray[Any], weights: tuple[Tensor, Tensor]
) -> Case:
    """Make the case of one layer.

    Args:
        rows: number of rows of each expert; which tokens they come from does not change the time.
    """
    device = weights[0].device
    ids = np.random.default_rng(0).permutation(np.repeat(np.arange(shape.experts), rows))
    topk_ids = torch.from_numpy(ids).int().to(device).view(-1, shape.top_k)
    tokens = len(topk_ids)
    hidden = torch.randn(tokens, shape.hidden, dtype=DTYPE, device=device)
    parts = torch.full((tokens, shape.top_k), 1 / shape.top_k, device=device)
    call = Call(*weights, DTYPE, shape.top_k, FLAGS)
    table = table_of(call)
    candidates = table.candidates(tokens)

    def way(choice: Choice) -> Way:
        def run() -> tuple[Tensor, ...]:
            with EXPERTS.forcing(choice):
                out = hidden.clone()
                return (fused_moe.fused_experts_impl(out, *weights, parts, topk_ids, inplace=True),)

        return run

    ways: dict[str, Build] = {f"block {entry.block}": partial(way, entry) for entry in candidates}
    alone = rows_by_tma(call, table)
    two = [entry for entry in candidates if entry not in alone][:2]
    if len(two) == 2:
        by_rows = BlockTime(0.0, 1.0)
        first, second = two
        pair = Pair(first, second, by_rows, by_rows)
        ways[f"device, {first.block} or {second.block}"] = partial(way, pair)
    stock = f"block {candidates[0].block}"
    used = int((rows > 0).sum())
    return Case(
        f"expert_blocks, {shape.name}, {routing}",
        {
            "tokens": tokens,
            "experts": shape.experts,
            "top_k": shape.top_k,
            "busiest": int(rows.max()),
        },
        DTYPE,
        moved_bytes=2 * hidden.nbytes + sum(each[:used].nbytes for each in weights),
        flops=int(shape.operations(len(ids))),
        tolerance=3e-2,  # bfloat16; blocks of different widths add in a different order
        ours={stock: ways.pop(stock)},
        baselines=ways,
    )


if __name__ == "__main__":
    main()
