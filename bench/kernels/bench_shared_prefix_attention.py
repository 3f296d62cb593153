"""Time fused and merged attention of packed rows against libraries, page aliasing, FlexAttention.

Run as ``python -m bench.kernels.bench_shared_prefix_attention``. The heads are those of Qwen3-0.6B:
16 query heads that share 8 key heads of size 128. A shape "60+2x50" is a prefix of 60 tokens and 50
rows of 2. The prefix is computed with the rows, or was cached before. Operations count only pairs
of a query and a key that it must attend to.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from prefill_kernels import shared_prefix_attention as shared_prefix
from prefill_kernels.merge_state import merge_state
from prefill_kernels.shared_prefix_attention import CachedKV, KeyParts, TilePlan
from torch import Tensor

from bench.kernels.attention_baselines import BASELINES, Problem
from bench.kernels.harness import Build, Case, Way, cuda_device, measure
from sglang_prefill_ext.attention.inputs import HeadShape, LayerInputs
from sglang_prefill_ext.attention.kernels import KernelAttention
from sglang_prefill_ext.attention.prefix_libraries import LIBRARIES
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.layout.kernel_plan import plan_tiles
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan

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
    torch.manual_seed(0)
    measure(cases(cuda_device()))


def cases(device: torch.device) -> Iterator[Case]:
    for prefix, row, rows, groups in SHAPES:
        yield from make_cases(prefix, row, rows, groups, device)


def make_cases(
    prefix: int, row: int, rows: int, groups: int, device: torch.device
) -> tuple[Case, Case]:
    """Make two cases: with fresh prefixes, and with cached ones."""
    shape = {"prefix": prefix, "row": row, "rows": rows, "groups": groups}
    problem = make_problem(prefix, row, rows, groups, device)
    suffixes = np.full(rows, row, dtype=np.int32)
    fresh = (GroupSpan(0, prefix, suffixes),) * groups
    libraries = {str(name): partial(_with_library, name, problem, fresh) for name in LIBRARIES}
    ours = our_ways(problem, fresh, None) | libraries

    is_row = np.repeat(problem.prefix_lens > 0, problem.lens)
    table = problem.on_device(np.flatnonzero(~is_row))
    cached = CachedKV(problem.k, problem.v, table)
    held = (GroupSpan(prefix, 0, suffixes),) * groups
    rows_only = problem.rows_only()
    return (
        _case(problem, {**shape, "cached": 0}, ours),
        _case(rows_only, {**shape, "cached": 1}, our_ways(rows_only, held, cached)),
    )


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
    problem: Problem, groups: tuple[GroupSpan, ...], cached: CachedKV | None
) -> dict[str, Build]:
    """Our ways: all queries in one launch, or in two launches whose results a third one joins."""
    layout, scale = ForwardLayout(groups), problem.scale
    tokens = problem.on_device(problem.query_tokens(), torch.int64)
    q, k, v = problem.q, problem.k[tokens], problem.v[tokens]
    sizes = (HEADS // KEY_HEADS, HEAD_DIM, q.dtype, q.device)
    tiles = tile_plan(layout, shared_prefix.block_tokens(*sizes), q.device)
    large_tiles = tile_plan(layout, shared_prefix.block_tokens(*sizes, KeyParts.PREFIX), q.device)

    def fused() -> tuple[Tensor]:
        out, _ = shared_prefix.shared_prefix_attention(q, k, v, tiles, scale, cached=cached)
        return (out,)

    def merge() -> tuple[Tensor]:
        attend, parts = shared_prefix.shared_prefix_attention, KeyParts.PREFIX
        prefix = attend(q, k, v, large_tiles, scale, cached=cached, parts=parts)
        own = attend(q, k, v, tiles, scale, parts=KeyParts.OWN)
        out, _ = merge_state(*prefix, *own, out=own[0], lse=own[1])
        return (out,)

    return {"fused": lambda: fused, "merge": lambda: merge}


def _with_library(name: AttentionWay, problem: Problem, groups: tuple[GroupSpan, ...]) -> Way:
    """The merged way, with a library's kernel for the prefixes."""
    heads = HeadShape(HEADS, KEY_HEADS, HEAD_DIM, HEAD_DIM)
    inputs = LayerInputs(problem.q, problem.k, problem.v, problem.scale)
    device = problem.q.device
    attention = KernelAttention(ForwardLayout(groups), name, (heads,), DTYPE, device)
    attention.bind([torch.from_numpy(array).to(device) for array in attention.host_arrays()])
    return lambda: (attention.forward(inputs, None),)


def tile_plan(layout: ForwardLayout, block_tokens: int, device: torch.device) -> TilePlan:
    """Plan the tiles of a layout, for a launch on a device."""
    plan = plan_tiles(layout, block_tokens=block_tokens)
    query_token, segment_start, tiles = (
        torch.from_numpy(array).to(device)
        for array in (plan.query_token, plan.segment_start, plan.tiles)
    )
    return TilePlan(query_token, segment_start, tiles, block_tokens=plan.block_tokens)


def _case(problem: Problem, shape: dict[str, int], ours: dict[str, Build]) -> Case:
    lens, prefix_lens = problem.lens, problem.prefix_lens
    pairs = int((lens * prefix_lens + lens * (lens + 1) // 2).sum())
    return Case(
        "shared_prefix_attention",
        shape,
        DTYPE,
        moved_bytes=2 * problem.q.nbytes + problem.k.nbytes + problem.v.nbytes,
        flops=4 * pairs * HEADS * HEAD_DIM,
        tolerance=2e-2,
        ours=ours,
        baselines={name: partial(build, problem) for name, build in BASELINES.items()},
    )


if __name__ == "__main__":
    main()
