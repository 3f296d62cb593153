"""The fused kernel against the definition; NaN is wherever it must not read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prefill_kernels.errors import KernelArgumentError
from prefill_kernels.merge_state import merge_state
from prefill_kernels.shared_prefix_attention import (
    CachedKV,
    KeyParts,
    TilePlan,
    block_tokens,
    shared_prefix_attention,
)
from torch import Tensor

from sglang_prefill_ext.layout import kernel_plan
from sglang_prefill_ext.layout.tokens import ForwardLayout
from tests.kernels.layouts import Case, make_case
from tests.unit.attention.strategies import layout, layouts

# A cached and a fresh prefix, short rows that share a tile and one that spans several; then a
# group without any prefix, and a chunk of a prefix.
FORWARD = layout((21, 13, 2, 3, 2, 19, 1), (0, 0, 5, 4), (40, 6))


def run(case: Case, parts: KeyParts = KeyParts.ALL) -> tuple[Tensor, Tensor]:
    return shared_prefix_attention(*case.arguments, cached=case.cached, parts=parts)


def test_every_part_together(device: torch.device, dtype: torch.dtype) -> None:
    case = make_case(FORWARD, device, dtype)
    case.check(run(case))


# The interpreter takes tenths of a second for each: shapes of forwards, few examples.
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    forward=layouts(max_groups=2),
    data=st.data(),
    block=st.sampled_from([3, 16]),
)
def test_any_forward_and_any_queries(
    device: torch.device, forward: ForwardLayout, data: st.DataObject, block: int
) -> None:
    tokens = st.integers(0, forward.num_tokens - 1)
    queries = data.draw(st.none() | st.sets(tokens, max_size=20).map(sorted))
    case = make_case(forward, device, torch.float32, queries, block_tokens=block)
    case.check(run(case))


@pytest.mark.parametrize(
    "sizes",
    [
        {"heads": 2, "key_heads": 2},
        {"heads": 8, "key_heads": 2},
        {"heads": 7, "key_heads": 1, "block_tokens": 4},
        {"heads": 3, "key_heads": 1},
        {"head_dim": 64, "value_dim": 64},
        {"head_dim": 80, "value_dim": 80},
        {"head_dim": 96, "value_dim": 96},
        {"head_dim": 128, "value_dim": 128},
        {"head_dim": 5, "value_dim": 24},
    ],
    ids=str,
)
def test_heads_and_head_sizes(
    device: torch.device, dtype: torch.dtype, sizes: dict[str, int]
) -> None:
    case = make_case(FORWARD, device, dtype, **sizes)
    case.check(run(case))


@pytest.mark.parametrize(
    "sizes",
    [
        {"head_dim": 256, "value_dim": 256},
        {"head_dim": 512, "value_dim": 512, "heads": 8, "key_heads": 1, "block_tokens": 4},
        {"head_dim": 192, "value_dim": 128, "key_heads": 4},
    ],
    ids=["large", "the largest, of Gemma 4", "latent attention of DeepSeek"],
)
def test_head_sizes_of_half_precision_only(device: torch.device, sizes: dict[str, int]) -> None:
    case = make_case(FORWARD, device, torch.float16, **sizes)
    case.check(run(case))


@pytest.mark.parametrize("held", [1, 64, 100])
def test_cached_prefixes(device: torch.device, dtype: torch.dtype, held: int) -> None:
    case = make_case(layout((held, 3, 4, 1), (7, 0, 2)), device, dtype)
    case.check(run(case))


def test_one_token(device: torch.device, dtype: torch.dtype) -> None:
    case = make_case(layout((0, 0, 1)), device, dtype)
    case.check(run(case))


def test_a_long_prefix_and_tiles_of_one_segment(device: torch.device, dtype: torch.dtype) -> None:
    queries = [0, 1, 63, 64, 700, 1998, 1999, *range(2000, 2040)]
    case = make_case(layout((0, 2000, 20, 20)), device, dtype, queries, block_tokens=16)
    case.check(run(case))


def test_a_tile_of_the_end_of_a_long_row_and_the_next(
    device: torch.device, dtype: torch.dtype
) -> None:
    queries = list(range(100, 150))
    case = make_case(layout((70, 0, 110, 40)), device, dtype, queries, block_tokens=16)
    case.check(run(case))


def test_large_scores_do_not_overflow(device: torch.device) -> None:
    case = make_case(FORWARD, device, torch.float32).replace(scale=100.0)
    out, lse = run(case)
    assert lse.abs().max() > 500
    case.check((out, lse), factor=10.0)


@pytest.mark.parametrize("part", list(KeyParts), ids=str)
def test_each_part_alone(device: torch.device, dtype: torch.dtype, part: KeyParts) -> None:
    case = make_case(FORWARD, device, dtype)
    out, lse = run(case, part)
    case.check((out, lse), part)
    empty = lse == -torch.inf
    assert (out[empty] == 0).all()
    assert empty.any() == (part != KeyParts.OWN)


def test_the_merged_parts_are_the_whole(device: torch.device) -> None:
    case = make_case(FORWARD, device, torch.float32)
    case.check(reduce(lambda a, b: merge_state(*a, *b), (run(case, part) for part in KeyParts)))


def test_no_part_is_no_key(device: torch.device) -> None:
    out, lse = run(make_case(FORWARD, device, torch.float32), KeyParts(0))
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


def test_padding_tiles_and_queries_of_no_tile(device: torch.device) -> None:
    case = make_case(FORWARD, device, torch.float32)
    padding = case.plan.tiles.new_zeros(3, 10)
    kept = case.plan.tiles[1:]
    case = case.replace(plan=replace(case.plan, tiles=torch.cat([kept, padding])))
    out, lse = run(case)
    assert out.isnan().any()  # what no tile writes, as the reference has it
    case.check((out, lse))


def test_no_tile_is_no_launch(device: torch.device) -> None:
    out, lse = run(make_case(FORWARD, device, torch.float32, queries=[]))
    assert out.shape == (0, 4, 16)
    assert lse.shape == (0, 4)


def test_offsets_beyond_32_bits(device: torch.device, tmp_path: Path) -> None:
    """Slots lie 2**29 elements apart in a sparse file."""
    if device.type == "cuda":
        memory = torch.empty(2**31 + 64, dtype=torch.float16, device=device)
    else:
        file = str(tmp_path / "cache")
        memory = torch.from_file(file, shared=True, size=2**31 + 64, dtype=torch.float16)
    case = make_case(layout((5, 0, 2)), device, torch.float16)
    assert case.cached is not None
    in_use = case.cached.page_table.long()
    k = memory.as_strided((5, 2, 16), (2**29, 16, 1))
    k.copy_(case.cached.k[in_use])
    table = torch.arange(5, dtype=torch.int32, device=device)
    cached = CachedKV(k, case.cached.v[in_use], table)
    case = case.replace(cached=cached)
    case.check(run(case))


def test_block_tokens_shrink_with_the_query_heads_of_a_key_head(device: torch.device) -> None:
    sizes = [block_tokens(group, 128, torch.bfloat16, device) for group in (1, 2, 3, 4, 7, 8)]
    assert sizes == [64, 32, 16, 16, 8, 8]


# Keys that are divided among several tiles


@pytest.fixture
def _divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefixes are divided that the interpreter has done with in a second."""
    monkeypatch.setattr(kernel_plan, "DIVIDED_PREFIX_TOKENS", 1)
    monkeypatch.setattr(kernel_plan, "PART_TOKENS", 1)


# Parts of 64 keys: more than there are, a window that hides some of them, and whole parts of it.
DIVIDED = layout((150, 70, 2, 3), (40, 0, 1), (0, 100, 1))


@pytest.mark.usefixtures("_divided")
@pytest.mark.parametrize(
    "scores", [{}, {"soft_cap": 2.0}, {"window": 30}, {"window": 100}, {"sinks": True}], ids=str
)
def test_divided_keys_give_what_whole_ones_do(
    device: torch.device, dtype: torch.dtype, scores: dict[str, Any]
) -> None:
    ends = DIVIDED.row_ends.tolist()
    case = make_case(DIVIDED, device, dtype, ends, programs=15)
    whole = make_case(DIVIDED, device, dtype, ends)
    assert (case.plan.parts, whole.plan.parts) == (5, 1)
    if "sinks" in scores:
        scores = {"sinks": torch.tensor([1.5, -4.0, 3.0, 0.0], device=device), "window": 90}
    result = shared_prefix_attention(*case.arguments, cached=case.cached, **scores)
    whole.replace(scores=scores).check(result)
    case.replace(scores=scores).check(result)


@pytest.mark.usefixtures("_divided")
def test_divided_keys_of_every_query_and_part(device: torch.device) -> None:
    case = make_case(DIVIDED, device, torch.float32, programs=60)
    assert case.plan.parts > 1
    for parts in (KeyParts.ALL, *KeyParts, KeyParts.PREFIX):
        case.check(run(case, parts), parts)


def _with_plan(**changes: Tensor | int) -> Callable[[Case], Case]:
    return lambda case: case.replace(plan=replace(case.plan, **changes))


def _with_cache(change: Callable[[CachedKV], dict[str, Any]]) -> Callable[[Case], Case]:
    def changed(case: Case) -> Case:
        assert case.cached is not None
        return case.replace(cached=replace(case.cached, **change(case.cached)))

    return changed


WRONG: dict[str, Callable[[Case], Case]] = {
    "q is torch.float64: use": lambda c: c.replace(q=c.q.double()),
    "q is of shape": lambda c: c.replace(q=c.q[0]),
    "q is of 3 heads: it must be a multiple of the 2 key heads": lambda c: c.replace(q=c.q[:, :3]),
    "q is strided by 2": lambda c: c.replace(q=c.q.repeat(1, 1, 2)[:, :, ::2]),
    "k is torch.float16: use torch.float32": lambda c: c.replace(k=c.k.half()),
    "k is of shape .* it must be .*16": lambda c: c.replace(k=c.k[:, :, :8]),
    "v is of shape": lambda c: c.replace(v=c.v[1:]),
    "v is strided by 2": lambda c: c.replace(v=c.v[:, :, ::2]),
    "scale is 0: it must be positive": lambda c: c.replace(scale=0),
    "scale is -0.5": lambda c: c.replace(scale=-0.5),
    "plan.query_token is of shape": lambda c: c.replace(q=c.q[1:]),
    "plan.segment_start is torch.int64": _with_plan(segment_start=torch.zeros(56).long()),
    "plan.tiles is of shape": _with_plan(tiles=torch.zeros(3, 7, dtype=torch.int32)),
    "plan.tiles is strided": _with_plan(tiles=torch.zeros(10, 3, dtype=torch.int32).t()),
    "plan.block_tokens is 17: it must be 1 to 16": _with_plan(block_tokens=17),
    "plan.block_tokens is 0": _with_plan(block_tokens=0),
    "plan.parts is 0: it must be at least 1": _with_plan(parts=0),
    "cached.k is torch.float16": _with_cache(lambda c: {"k": c.k.half()}),
    "cached.k is of shape": _with_cache(lambda c: {"k": c.k[:, 0]}),
    "cached.k is strided": _with_cache(lambda c: {"k": c.k.repeat(1, 1, 2)[:, :, ::2]}),
    "cached.v is of .* slots: it must have": _with_cache(lambda c: {"v": c.v[:-1]}),
    "cached.v is torch.float8_e4m3fn": _with_cache(lambda c: {"v": c.v.to(torch.float8_e4m3fn)}),
    "cached.page_table is torch.int64": _with_cache(lambda c: {"page_table": c.page_table.long()}),
    "head_dim is 129: head sizes go up to 128": lambda c: c.replace(
        v=torch.cat([c.v] * 9, dim=2)[:, :, :129]
    ),
    "group_size is 64: 32 query heads": lambda c: c.replace(
        q=c.q.repeat(1, 16, 1), k=c.k[:, :1], v=c.v[:, :1]
    ),
}


@pytest.mark.parametrize(("message", "change"), WRONG.items(), ids=WRONG)
def test_wrong_arguments_are_refused(
    device: torch.device, message: str, change: Callable[[Case], Case]
) -> None:
    case = make_case(FORWARD, device, torch.float32)
    changed = change(case)
    plan = TilePlan(
        *(getattr(changed.plan, x).to(device) for x in ("query_token", "segment_start", "tiles")),
        block_tokens=changed.plan.block_tokens,
        parts=changed.plan.parts,
    )
    with pytest.raises(KernelArgumentError, match=message):
        run(changed.replace(plan=plan))


def test_wrong_arguments_are_refused_however_often(device: torch.device) -> None:
    """Arguments that were accepted once do not let similar wrong ones pass later."""
    case = make_case(FORWARD, device, torch.float32)
    case.check(run(case))
    for message, change in WRONG.items():
        changed = change(case)
        if changed.plan.tiles.device != device:
            continue  # made for the other test
        for _ in range(2):
            with pytest.raises(KernelArgumentError, match=message):
                run(changed)
    case.check(run(case))
