from __future__ import annotations

from dataclasses import replace

import pytest

from bench.mixed.__main__ import longest_of_fcfs, mix_table
from bench.mixed.mix import FCFS
from bench.score.plan import STOCK
from tests.unit.bench.commands import printed
from tests.unit.bench.results import mix_result

RESULTS = [
    mix_result(STOCK, longest_p99_ms=400.0, mean_slowdown=9.0, requests_per_forward=None),
    mix_result(FCFS, longest_p99_ms=200.0, mean_slowdown=3.04),
    mix_result("srpt", longest_p99_ms=210.0, mean_slowdown=2.96),
    replace(mix_result(FCFS, longest_p99_ms=500.0), load_of="extension", rate_per_s=80.0),
]


def test_longest_is_compared_under_the_same_load() -> None:
    assert longest_of_fcfs(RESULTS[2], RESULTS) == pytest.approx(1.05)
    assert longest_of_fcfs(RESULTS[3], RESULTS[:3]) is None
    (line,) = (each for each in printed(mix_table(RESULTS[:1])).splitlines() if "95% of" in each)
    assert line.split()[-1] == "-"
