"""The kernels' plan gives every token the keys that it sees by definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sglang_prefill_ext.layout.kernel_plan import (
    SPAN_BLOCKS,
    KernelPlan,
    of_fixed_size,
    parts_of_keys,
    plan_tiles,
)
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
from tests.unit.attention.strategies import layout, layouts, whole_prompts
from tests.unit.layout.visible_keys import Key, held_keys, keys_seen

FORWARD = layout((5, 4, 3, 3), (0, 2, 1))


@st.composite
def planned(draw: st.DrawFn) -> tuple[ForwardLayout, np.ndarray | None, int]:
    """A forward, some or all of its tokens as queries, and `block_tokens`."""
    forward = draw(layouts() | whole_prompts())
    queries = None
    if draw(st.booleans()):
        tokens = st.integers(0, forward.num_tokens - 1)
        queries = np.array(sorted(draw(st.sets(tokens, max_size=40))), dtype=np.int64)
    return forward, queries, draw(st.sampled_from([1, 2, 8, 32]))


def _seen(plan: KernelPlan, tile: np.ndarray, query: int, cached: list[Key]) -> list[Key]:
    """The keys of one query as the kernel walks them."""
    _, _, fresh_start, fresh_stop, own_start, own_stop, page_offset, cached_len, _, _ = (
        tile.tolist()
    )
    first, last = plan.segment_start[query], plan.query_token[query]
    own = [token for token in range(own_start, own_stop) if first <= token <= last]
    return cached[page_offset : page_offset + cached_len] + [
        (-1, token) for token in [*range(fresh_start, fresh_stop), *own]
    ]


@settings(deadline=None)
@given(planned(), st.sampled_from([0, 1, 5, 64]))
@example((layout((0, 9, 20, 20)), np.array([28, 48]), 8), 5)  # both in the same chunk
def test_every_query_is_in_one_tile_and_sees_what_it_should(
    case: tuple[ForwardLayout, np.ndarray | None, int], chunk: int
) -> None:
    forward, queries, block_tokens = case
    chunk *= forward.causal
    plan = plan_tiles(forward, block_tokens=block_tokens, queries=queries, chunk=chunk)
    wanted = list(range(forward.num_tokens)) if queries is None else queries.tolist()
    assert plan.query_token.tolist() == forward.last_keys()[wanted].tolist()
    cached, expected, positions = held_keys(forward), keys_seen(forward), forward.positions()
    placed: list[int] = []
    for tile in plan.tiles:
        for query in range(tile[0], tile[1]):
            first = positions[wanted[query]] // chunk * chunk if chunk else 0
            assert _seen(plan, tile, query, cached) == expected[wanted[query]][first:]
            placed.append(query)
    assert sorted(placed) == list(range(len(wanted)))


@settings(deadline=None)
@given(planned())
def test_tiles_are_of_bounded_size_and_the_longest_come_first(
    case: tuple[ForwardLayout, np.ndarray | None, int],
) -> None:
    forward, queries, block_tokens = case
    plan = plan_tiles(forward, block_tokens=block_tokens, queries=queries)
    start, stop, fresh_start, fresh_stop, own_start, own_stop, _, cached_len, _, _ = plan.tiles.T
    assert ((stop > start) & (stop - start <= block_tokens)).all()
    tokens = np.arange(forward.num_tokens) if queries is None else queries
    spans = tokens[stop - 1] - tokens[start]
    assert (spans < SPAN_BLOCKS * block_tokens).all()
    work = cached_len + fresh_stop - fresh_start + own_stop - own_start
    assert (np.diff(work) <= 0).all()


@settings(deadline=None)
@given(layouts() | whole_prompts(), st.sampled_from([1, 2, 8, 32]), st.integers(0, 3))
def test_no_plan_has_more_tiles_than_there_is_room_for(
    forward: ForwardLayout, block_tokens: int, more: int
) -> None:
    plan = plan_tiles(forward, block_tokens=block_tokens)
    most_groups = len(forward.groups) + more
    padded = of_fixed_size(plan, most_groups)
    other = ForwardLayout((GroupSpan(0, 0, np.ones(forward.num_tokens, np.int32)),))
    alike = of_fixed_size(plan_tiles(other, block_tokens=block_tokens), most_groups)
    assert padded.tiles.shape == alike.tiles.shape
    assert padded.tiles.dtype == np.int32
    assert np.array_equal(padded.tiles[: len(plan.tiles)], plan.tiles)
    start, stop = padded.tiles[len(plan.tiles) :, :2].T
    assert (start == stop).all()


# Keys that are divided


@settings(deadline=None)
@given(
    prefix=st.tuples(st.integers(0, 9000), st.integers(0, 9000)),
    rows=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    others=st.lists(st.integers(0, 3000), max_size=2),
    programs=st.integers(0, 600),
)
def test_the_parts_of_a_tile_are_the_whole(
    prefix: tuple[int, int], rows: list[int], others: list[int], programs: int
) -> None:
    forward = layout((*prefix, *rows), *((held, 0, 1) for held in others))
    ends = forward.row_ends
    whole = plan_tiles(forward, block_tokens=32, queries=ends)
    sizes = {"programs": programs, "key_heads": 8}
    divided = plan_tiles(forward, block_tokens=32, queries=ends, **sizes)
    assert whole.parts == 1
    assert len(divided.tiles) == divided.parts * len(whole.tiles)
    assert divided.parts == 1 or len(divided.tiles) * 8 <= programs
    for tile in whole.tiles:
        queries, (fresh_start, fresh_stop), own = tile[:2], tile[2:4], tile[4:6]
        offset, held = tile[6:8]
        parts = divided.tiles[(divided.tiles[:, :2] == queries).all(1)]
        parts = parts[np.argsort(-parts[:, 9])]
        assert parts[:, 9].tolist() == list(range(divided.parts))[::-1]
        assert parts[-1, 4:6].tolist() == own.tolist()
        assert (parts[:-1, 4] == parts[:-1, 5]).all()
        cached = [at + i for at, n in parts[:, [6, 7]] for i in range(n)]
        assert cached == [*range(offset, offset + held)]
        assert parts[:, 7].sum() == held
        fresh = [token for start, stop in parts[:, 2:4] for token in range(start, stop)]
        assert fresh == [*range(fresh_start, fresh_stop)]
        lens = parts[:, 7] + parts[:, 3] - parts[:, 2]
        assert parts[:, 8].tolist() == [lens[number + 1 :].sum() for number in range(len(parts))]


@pytest.mark.parametrize(("held", "fresh"), [(8000, 0), (0, 8000), (3000, 5000)])
def test_a_long_prefix_and_few_queries_have_work_for_the_whole_device(
    held: int, fresh: int
) -> None:
    forward = layout((held, fresh, *[2] * 20))
    rows = np.arange(fresh, fresh + 40)
    plan = plan_tiles(forward, block_tokens=32, queries=rows, programs=264, key_heads=8)
    assert plan.parts == 15
    assert 132 < len(plan.tiles) * 8 <= 264
    assert (plan.tiles[:, 7] + plan.tiles[:, 3] - plan.tiles[:, 2]).max() == 576


@pytest.mark.parametrize(
    "forward",
    [
        layout((0, 60, *[2] * 50)),
        layout((60, 0, *[2] * 50)),
        layout((8000, 0, *[100] * 50)),
        layout((8000, 0, 1), (0, 60, *[2] * 50)),
        layout((0, 8000)),
    ],
)
def test_others_are_not_divided(forward: ForwardLayout) -> None:
    plan = plan_tiles(forward, block_tokens=32, programs=264, key_heads=8)
    assert (plan.parts, plan.tiles[:, 8:].any()) == (1, False)


def test_nothing_is_divided_unless_the_device_is_known() -> None:
    assert plan_tiles(layout((8000, 0, 1)), block_tokens=32).parts == 1
    assert parts_of_keys(0, 8000, 264) == 1


def test_own_keys_begin_with_the_first_segment_and_end_with_the_last_query() -> None:
    plan = plan_tiles(layout((0, 3, 4, 4)), block_tokens=8, queries=np.array([5, 8]))
    assert plan.tiles.tolist() == [[0, 2, 0, 3, 3, 9, 0, 0, 0, 0]]
    assert plan.segment_start.tolist() == [3, 7]


def test_each_group_has_its_own_slots() -> None:
    forward = layout((7, 0, 1), (0, 0, 1), (9, 0, 1))
    plan = plan_tiles(forward, block_tokens=8)
    by_group = plan.tiles[np.argsort(plan.tiles[:, 0])]
    assert by_group[:, 6].tolist() == [0, 7, 7]
    assert by_group[:, 7].tolist() == [7, 0, 9]


def test_no_query_is_no_tile() -> None:
    plan = plan_tiles(FORWARD, block_tokens=8, queries=np.array([], dtype=np.int64))
    assert plan.tiles.shape == (0, 10)


@pytest.mark.parametrize("name", ["query_token", "segment_start", "tiles"])
def test_arrays_are_int32_and_contiguous(name: str) -> None:
    array = getattr(plan_tiles(FORWARD, block_tokens=2), name)
    assert array.dtype == np.int32
    assert array.flags.c_contiguous
