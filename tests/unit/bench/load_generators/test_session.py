from __future__ import annotations

import pytest

from bench.http_client import LoadError
from bench.load_generators.session import check_packed


@pytest.mark.parametrize("under_way", [0, 1, 4])
def test_requests_under_way_when_the_tool_stops_may_count(under_way: int) -> None:
    check_packed("grpc", 1000 + under_way, 1000, clients=4)


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (999, "grpc: only 99% of the requests were packed"),
        (0, "only 0%"),
        (1005, "1,005 requests were packed, but only 1,000 answered"),
        (1060, "only 1,000 answered"),
        (1127, "only 1,000 answered"),
    ],
)
def test_any_other_count_is_an_error(packed: int, words: str) -> None:
    with pytest.raises(LoadError, match=words):
        check_packed("grpc", packed, 1000, clients=4)
