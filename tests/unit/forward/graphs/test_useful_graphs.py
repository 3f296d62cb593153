from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.forward.calibration import capture_useful
from sglang_prefill_ext.forward.graphs.plan import GraphUse, sizes_up_to, useful_tokens

TOKENS = st.integers(1, 20_000)


class Limited:
    """Captures graphs of up to `limit` tokens."""

    def __init__(self, limit: int) -> None:
        self.limit, self.graph_use = limit, GraphUse()
        self.asked: list[int] = []

    def forget_graphs(self) -> None:
        self.graph_use = GraphUse()

    def capture_graphs(self, max_tokens: int) -> None:
        self.asked.append(max_tokens)
        if max_tokens > self.limit:
            self.graph_use.obstacle = "the capture failed"
        else:
            self.graph_use.sizes = (max_tokens,)


@pytest.mark.parametrize(
    ("limit", "asked", "sizes"),
    [
        (8192, [8192], (8192,)),
        (4096, [8192, 4096], (4096,)),
        (1024, [8192, 4096], ()),
    ],
)
def test_if_large_graphs_cannot_be_captured_smaller_ones_are(
    limit: int, asked: list[int], sizes: tuple[int, ...]
) -> None:
    executor = Limited(limit)
    capture_useful(executor, 16384, 8000, 1e6)
    assert executor.asked == asked
    assert executor.graph_use.sizes == sizes
    assert bool(executor.graph_use.obstacle) == (not sizes)


def test_small_graphs_that_cannot_be_captured_are_not_tried_again() -> None:
    executor = Limited(0)
    capture_useful(executor, 16384, 1000, 1e6)
    assert executor.asked == [1024]


@pytest.mark.parametrize(
    ("free_tokens", "largest"), [(4 * 1024, 1024), (4 * 1024 - 4, 960), (3, 16), (1e6, 8192)]
)
def test_graphs_keep_a_part_of_the_free_memory(free_tokens: float, largest: int) -> None:
    executor = Limited(10**6)
    capture_useful(executor, 8192, 8192, free_tokens)
    assert executor.asked == [largest]


@given(TOKENS, TOKENS, TOKENS)
def test_the_largest_graph_saves_time_and_is_affordable(most: int, hidden: int, free: int) -> None:
    largest, sizes = useful_tokens(most, hidden, free), sizes_up_to(most)
    assert largest in sizes
    assert largest <= max(free, sizes[0])
    smaller = [tokens for tokens in sizes if tokens < largest]
    assert all(tokens < hidden for tokens in smaller)
    larger = next((tokens for tokens in sizes if tokens > largest), None)
    assert larger is None or larger > free or largest >= hidden
