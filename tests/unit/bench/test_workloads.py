from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.workloads import ClosedLoop, OpenLoop, Shape, draw_requests, parse_load
from sglang_prefill_ext.errors import ConfigError

shapes = st.builds(Shape, st.integers(1, 40), st.integers(0, 40), st.integers(1, 20))


@pytest.mark.parametrize(
    ("text", "load", "shown"),
    [
        ("8", ClosedLoop(8), "8 clients"),
        ("1", ClosedLoop(1), "1 client"),
        ("12.5/s", OpenLoop(12.5, relative=False), "12.5 req/s"),
        ("70%", OpenLoop(0.7, relative=True), "70% of stock"),
    ],
)
def test_loads(text: str, load: ClosedLoop | OpenLoop, shown: str) -> None:
    assert parse_load(text) == load
    assert str(load) == shown


@pytest.mark.parametrize("text", ["", "0", "0%", "0.0/s", "8 clients", "-3", "7/m"])
def test_wrong_load_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="number of clients"):
        parse_load(text)


def test_open_rate_is_absolute_or_a_share_of_stock() -> None:
    assert OpenLoop(12.5, relative=False).requests_per_s(40.0) == 12.5
    assert OpenLoop(0.7, relative=True).requests_per_s(40.0) == pytest.approx(28.0)


@given(shapes, st.integers(0, 3), st.integers(0, 2**31))
def test_requests_have_the_sizes_and_depend_only_on_the_arguments(
    shape: Shape, count: int, seed: int
) -> None:
    requests = draw_requests(shape, 8000, count, seed)
    assert requests == draw_requests(shape, 8000, count, seed)
    assert len(requests) == count
    for request in requests:
        assert len(request.query) == shape.query_tokens
        assert [len(item) for item in request.items] == [shape.item_tokens] * shape.items
        assert all(16 <= token < 8000 for row in [request.query, *request.items] for token in row)


def test_tokens_vary_within_and_between_requests() -> None:
    first, second = draw_requests(Shape(60, 150, 50), 8000, 2, seed=0)
    assert first != second
    assert first.query != draw_requests(Shape(60, 150, 50), 8000, 1, seed=1)[0].query
    assert len(set(first.query)) > 50
    assert len({tuple(item) for item in first.items}) == 50
    assert len({item[0] for item in first.items}) > 40  # no common prefix beyond the query
