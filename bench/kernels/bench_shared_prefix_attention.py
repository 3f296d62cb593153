"""Attention of packed rows, fused and merged, against libraries, page aliasing and FlexAttention.

Run as ``python -m bench.kernels.bench_shared_prefix_attention``. Heads as in Qwen3-0.6B: 16 query
heads that share 8 key heads of 128. A shape "60+2x50" is a prefix of 60 tokens and 50 rows of 2.
Operations are those of pairs that a query must see; a baseline that is not installed is named on
standard error and left out.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from prefill_kernels import partial_prefix_attention as partial_prefix
from prefill_kernels import shared_prefix_attention as shared_prefix
from prefill_kernels.merge_state import merge_state
from prefill_kernels.shared_prefix_attention import CachedKV, KeyParts, TilePlan
from torch import Tensor

from bench.kernels.attention_baselines import BASELINES, Problem
from bench.kernels.harness import Case, Way, cuda_device, measure
from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.attention.kernel_plan import plan_tiles
from sglang_prefill_ext.attention.kernels import KernelAttention
from sglang_prefill_ext.attention.libraries import LIBRARIES
from sglang_prefill_ext.attention.way import HeadShape
from sglang_prefill_ext.oneshot.layout import ForwardLayout, GroupSpan

HEADS, KEY_HEADS, HEAD_DIM = 16, 8, 128
DTYPE = torch.bfloat16
SHAPES = [  # prefix, tokens of a row, rows, groups
    (60, 2, 50, 1),
    (60, 2, 50, 64),
    (50, 150, 50, 1),
    (50, 150, 50, 4),
    (120, 180, 10, 1),
    (120, 180, 10, 8),
    (2000, 20, 100, 1),
    (2000, 20, 100, 4),
]


def main() -> None:
    device = cuda_device()
    torch.manual_seed(0)
    for prefix, row, rows, groups in SHAPES:
        problem = make_problem(prefix, row, rows, groups, device)
        shape = {"prefix": prefix, "row": row, "rows": rows, "groups": groups}
        fresh = GroupSpan(0, prefix, np.full(rows, row, dtype=np.int32))
        ways = our_ways(problem.q, problem.k, problem.v, (fresh,) * groups, problem.scale, None)
        others = _library_ways(problem, (fresh,) * groups) | _baselines(problem)
        measure(_case(problem, {**shape, "cached": 0}), ways | others)
        measure(_case(problem, {**shape, "cached": 1}), _ways_with_cached_prefix(problem, rows))


def make_problem(prefix: int, row: int, rows: int, groups: int, device: torch.device) -> Problem:
    """Random numbers in the dtype of the benchmark."""
    lens = np.array(groups * [prefix, *[row] * rows], dtype=np.int64)
    starts = np.cumsum(lens) - lens
    is_row = np.arange(lens.size) % (rows + 1) > 0
    num_tokens = int(lens.sum())
    q, k, v = (
        torch.randn(num_tokens, heads, HEAD_DIM, dtype=DTYPE, device=device)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    prefix_starts = np.repeat(starts[:: rows + 1], rows + 1)
    return Problem(q, k, v, HEAD_DIM**-0.5, starts, lens, prefix_starts, prefix * is_row)


def our_ways(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    groups: tuple[GroupSpan, ...],
    scale: float,
    cached: CachedKV | None,
) -> dict[str, Way]:
    """All queries in one launch, and in two launches whose results a third one joins."""
    layout = ForwardLayout(groups)
    sizes = (HEADS // KEY_HEADS, HEAD_DIM, q.dtype)
    tiles = _plan(layout, shared_prefix.block_tokens(*sizes), q.device)
    large_tiles = _plan(layout, partial_prefix.block_tokens(*sizes, q.device), q.device)

    def fused() -> tuple[Tensor]:
        out, _ = shared_prefix.shared_prefix_attention(q, k, v, tiles, scale, cached=cached)
        return (out,)

    def merge() -> tuple[Tensor]:
        prefix = partial_prefix.partial_prefix_attention(q, k, v, large_tiles, scale, cached=cached)
        own = shared_prefix.shared_prefix_attention(q, k, v, tiles, scale, parts=KeyParts.OWN)
        out, _ = merge_state(*prefix, *own, out=own[0], lse=own[1])
        return (out,)

    return {"fused": fused, "merge": merge}


def _library_ways(problem: Problem, groups: tuple[GroupSpan, ...]) -> dict[str, Way]:
    """Merged, with a library's kernel for the prefixes, one call a group."""
    heads = HeadShape(HEADS, KEY_HEADS, HEAD_DIM, HEAD_DIM)
    inputs = LayerInputs(problem.q, problem.k, problem.v, problem.scale)
    ways: dict[str, Way] = {}
    device = problem.q.device
    for name in LIBRARIES:
        attention = KernelAttention(ForwardLayout(groups), name, heads, DTYPE, device)
        attention.bind([torch.from_numpy(array).to(device) for array in attention.host_arrays()])

        def run(attention: KernelAttention = attention) -> tuple[Tensor]:
            return (attention.forward(inputs, [None] * len(groups)),)

        try:
            run()
        except ImportError as error:
            print(f"without {name}: {error}", file=sys.stderr)
        else:
            ways[name] = run
    return ways


def _plan(layout: ForwardLayout, block_tokens: int, device: torch.device) -> TilePlan:
    plan = plan_tiles(layout, block_tokens=block_tokens)
    arrays = (plan.query_token, plan.segment_start, plan.tiles)
    tensors = (torch.from_numpy(array).to(device) for array in arrays)
    return TilePlan(*tensors, block_tokens=plan.block_tokens)


def _ways_with_cached_prefix(problem: Problem, rows: int) -> dict[str, Way]:
    """The rows alone, behind prefixes in pages of one token."""
    is_row = np.repeat(problem.prefix_lens > 0, problem.lens)
    in_rows = problem.on_device(np.flatnonzero(is_row), torch.int64)
    table = problem.on_device(np.flatnonzero(~is_row))
    cached = CachedKV(problem.k, problem.v, table, page_size=1)
    q, k, v = (x[in_rows] for x in (problem.q, problem.k, problem.v))
    groups = tuple(
        GroupSpan(int(lens[0]), 0, lens[1:].astype(np.int32))
        for lens in problem.lens.reshape(-1, rows + 1)
    )
    return our_ways(q, k, v, groups, problem.scale, cached)


def _baselines(problem: Problem) -> dict[str, Way]:
    ways = {}
    for name, build in BASELINES.items():
        try:
            ways[name] = build(problem)
        except ImportError as error:
            print(f"without {name}: {error}", file=sys.stderr)
    return ways


def _case(problem: Problem, shape: dict[str, int]) -> Case:
    lens, prefix_lens = problem.lens, problem.prefix_lens
    if shape["cached"]:
        lens, prefix_lens = lens[prefix_lens > 0], prefix_lens[prefix_lens > 0]
    pairs = int((lens * prefix_lens + lens * (lens + 1) // 2).sum())
    query_bytes = int(lens.sum()) * HEADS * HEAD_DIM * DTYPE.itemsize
    return Case(
        "shared_prefix_attention",
        shape,
        DTYPE,
        moved_bytes=2 * query_bytes + problem.k.nbytes + problem.v.nbytes,
        flops=4 * pairs * HEADS * HEAD_DIM,
        tolerance=2e-2,
    )


if __name__ == "__main__":
    main()
