"""The kernels' plan against the definition of what every token sees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_prefill_ext.attention.kernel_plan import (
    SPAN_BLOCKS,
    KernelPlan,
    most_tiles,
    plan_tiles,
    with_idle_tiles,
)
from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.oneshot.layout import ForwardLayout
from tests.unit.attention.strategies import layout, layouts, whole_prompts

Key = tuple[str, int]
"""("token", token of the forward) or (group as text, held token)."""

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


def _expected(forward: ForwardLayout) -> list[list[Key]]:
    """The keys that each token sees."""
    seen: list[list[Key]] = []
    for index, span in enumerate(forward.groups):
        prefix: list[Key] = [(str(index), token) for token in range(span.held)]
        for segment, length in enumerate([span.fresh, *span.suffix_lens.tolist()]):
            own: list[Key] = [("token", len(seen) + i) for i in range(length)]
            stops = range(1, length + 1) if forward.causal else [length] * length
            seen.extend(prefix + own[:stop] for stop in stops)
            if segment == 0:
                prefix = prefix + own
    return seen


def _seen(plan: KernelPlan, tile: np.ndarray, query: int, pages: list[Key]) -> list[Key]:
    """The keys of one query as the kernel walks them, with pages of one token."""
    _, _, fresh_start, fresh_stop, own_start, own_stop, page_offset, cached_len = tile.tolist()
    first, last = plan.segment_start[query], plan.query_token[query]
    own = [token for token in range(own_start, own_stop) if first <= token <= last]
    return pages[page_offset : page_offset + cached_len] + [
        ("token", token) for token in [*range(fresh_start, fresh_stop), *own]
    ]


@settings(deadline=None)
@given(planned())
def test_every_query_is_in_one_tile_and_sees_what_it_should(
    case: tuple[ForwardLayout, np.ndarray | None, int],
) -> None:
    forward, queries, block_tokens = case
    plan = plan_tiles(forward, block_tokens=block_tokens, queries=queries)
    wanted = list(range(forward.num_tokens)) if queries is None else queries.tolist()
    assert plan.query_token.tolist() == forward.last_keys()[wanted].tolist()
    pages = [(str(i), token) for i, g in enumerate(forward.groups) for token in range(g.held)]
    assert plan.num_pages == len(pages)
    expected = _expected(forward)
    placed: list[int] = []
    for tile in plan.tiles:
        for query in range(tile[0], tile[1]):
            assert _seen(plan, tile, query, pages) == expected[wanted[query]]
            placed.append(query)
    assert sorted(placed) == list(range(len(wanted)))


@settings(deadline=None)
@given(planned())
def test_tiles_are_of_bounded_size_and_the_longest_come_first(
    case: tuple[ForwardLayout, np.ndarray | None, int],
) -> None:
    forward, queries, block_tokens = case
    plan = plan_tiles(forward, block_tokens=block_tokens, queries=queries)
    start, stop, fresh_start, fresh_stop, own_start, own_stop, _, cached_len = plan.tiles.T
    assert ((stop > start) & (stop - start <= block_tokens)).all()
    tokens = np.arange(forward.num_tokens) if queries is None else queries
    spans = tokens[stop - 1] - tokens[start]
    assert (spans < SPAN_BLOCKS * block_tokens).all()
    work = cached_len + fresh_stop - fresh_start + own_stop - own_start
    assert (np.diff(work) <= 0).all()


@settings(deadline=None)
@given(planned(), st.integers(0, 3))
def test_no_plan_has_more_tiles_than_there_is_room_for(
    case: tuple[ForwardLayout, np.ndarray | None, int], more: int
) -> None:
    forward, queries, block_tokens = case
    plan = plan_tiles(forward, block_tokens=block_tokens, queries=queries)
    sizes = forward.num_tokens, len(plan.query_token), len(forward.groups)
    room = most_tiles(*sizes, block_tokens) + more
    padded = with_idle_tiles(plan, room)
    assert padded.tiles.shape == (room, 8)
    assert padded.tiles.dtype == np.int32
    assert np.array_equal(padded.tiles[: len(plan.tiles)], plan.tiles)
    start, stop = padded.tiles[len(plan.tiles) :, :2].T
    assert (start == stop).all()
    if len(plan.tiles):
        with pytest.raises(PackingError, match=f"room for {len(plan.tiles) - 1}"):
            with_idle_tiles(plan, len(plan.tiles) - 1)


def test_own_keys_begin_with_the_first_segment_and_end_with_the_last_query() -> None:
    plan = plan_tiles(layout((0, 3, 4, 4)), block_tokens=8, queries=np.array([5, 8]))
    assert plan.tiles.tolist() == [[0, 2, 0, 3, 3, 9, 0, 0]]
    assert plan.segment_start.tolist() == [3, 7]


@pytest.mark.parametrize(
    ("page_size", "offsets"), [(1, [0, 7, 7]), (4, [0, 2, 2]), (64, [0, 1, 1])]
)
def test_each_group_has_its_own_pages(page_size: int, offsets: list[int]) -> None:
    forward = layout((7, 0, 1), (0, 0, 1), (9, 0, 1))
    plan = plan_tiles(forward, block_tokens=8, page_size=page_size)
    by_group = plan.tiles[np.argsort(plan.tiles[:, 0])]
    assert by_group[:, 6].tolist() == offsets
    assert by_group[:, 7].tolist() == [7, 0, 9]
    assert plan.num_pages == offsets[-1] + -(-9 // page_size)


def test_no_query_is_no_tile() -> None:
    plan = plan_tiles(FORWARD, block_tokens=8, queries=np.array([], dtype=np.int64))
    assert plan.tiles.shape == (0, 8)


@pytest.mark.parametrize("name", ["query_token", "segment_start", "tiles"])
def test_arrays_are_int32_and_contiguous(name: str) -> None:
    array = getattr(plan_tiles(FORWARD, block_tokens=2), name)
    assert array.dtype == np.int32
    assert array.flags.c_contiguous


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ([-1, 3], r"queries are -1\.\.3; the forward has the tokens 0\.\.12"),
        ([3, 13], r"queries are 3\.\.13"),
        ([3, 3], "must ascend"),
        ([4, 3], "must ascend"),
        ([[1, 2]], r"int64 \[1, 2\]; it must be int64 \[Q\]"),
    ],
)
def test_wrong_queries_are_refused(queries: list[int], message: str) -> None:
    with pytest.raises(PackingError, match=message):
        plan_tiles(FORWARD, block_tokens=8, queries=np.array(queries))


def test_queries_of_another_dtype_are_refused() -> None:
    with pytest.raises(PackingError, match="queries is float64"):
        plan_tiles(FORWARD, block_tokens=8, queries=np.array([1.0]))


@pytest.mark.parametrize("argument", ["block_tokens", "page_size"])
def test_sizes_below_one_are_refused(argument: str) -> None:
    with pytest.raises(PackingError, match=f"{argument} is 0; it must be at least 1"):
        plan_tiles(FORWARD, **{"block_tokens": 1, argument: 0})
