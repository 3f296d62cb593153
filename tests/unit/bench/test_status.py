from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.http_client import LoadError
from bench.status import PackedCounters, packed_counters, packed_requests, scheduled_requests
from tests.unit.bench.stand_in import StandIn


def test_counters_are_summed_over_schedulers() -> None:
    status = {
        "frontend": {"counters": {"requests": {"packed": 9, "stock": 2}}},
        "schedulers": [
            {"counters": {"forwards": 3}, "busy_s": 0.5},
            {"counters": {"forwards": 4}, "busy_s": 0.25},
        ],
    }
    assert PackedCounters.from_status(status) == PackedCounters(9, 7, 0.75)
    status["frontend"] = {"counters": {"requests": {}}}
    assert PackedCounters.from_status(status).requests == 0


def test_since_is_the_difference() -> None:
    assert PackedCounters(9, 7, 0.75).since(PackedCounters(4, 3, 0.5)) == PackedCounters(5, 4, 0.25)


def test_asks_the_server(stand_in: StandIn) -> None:
    stand_in.packed = 7
    seen = packed_counters(stand_in.port)
    assert (seen.requests, seen.forwards) == (7, 7)
    assert seen.busy_s > 0.0


@pytest.mark.parametrize("count", [packed_requests, scheduled_requests])
def test_a_server_without_the_page_has_packed_nothing(
    stand_in: StandIn, count: Callable[[int], int]
) -> None:
    stand_in.packed = 7
    assert count(stand_in.port) == 7
    stand_in.status = 404
    assert count(stand_in.port) == 0


def test_a_server_without_the_page_is_an_error(stand_in: StandIn) -> None:
    stand_in.status = 404
    with pytest.raises(LoadError, match="no status page"):
        packed_counters(stand_in.port)
