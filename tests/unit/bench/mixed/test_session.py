from __future__ import annotations

import pytest

from bench.http_client import LoadError
from bench.load import Measurement
from bench.mixed.session import in_order_of_arrival, requests_per_forward
from bench.status import PackedCounters


def test_requests_per_forward() -> None:
    assert requests_per_forward(PackedCounters(12, 4, 1.0), sent=12) == 3.0


def test_requests_that_take_the_stock_path_are_no_measurement() -> None:
    with pytest.raises(LoadError, match=r"only 11 of 12 requests took the packed path"):
        requests_per_forward(PackedCounters(11, 4, 1.0), sent=12)


def test_latencies_are_sorted_by_number() -> None:
    seen = Measurement(latencies_s=[0.3, 0.1, 0.2], numbers=[2, 0, 1], sent=3)
    assert in_order_of_arrival(seen) == pytest.approx([100.0, 200.0, 300.0])
