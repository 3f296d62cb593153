from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.soak.windows import SoakWindow, Verdict, verdict_of, windows_of


def test_a_run_is_cut_at_the_samples() -> None:
    windows = windows_of(
        [0.5, 1.0, 1.5, 3.5],
        [0.1, 0.3, 0.2, 0.4],
        [(1.0, {"a": 5.0}), (3.0, {"a": 6.0}), (4.0, {})],
    )
    assert [window.requests_per_s for window in windows] == [2.0, 0.5, 1.0]
    assert [window.p50_ms for window in windows] == pytest.approx([200, 200, 400])
    assert windows[0].p99_ms == pytest.approx(298)
    assert [window.memory_mib for window in windows] == [{"a": 5.0}, {"a": 6.0}, {}]


def test_a_window_without_answers_has_no_latency() -> None:
    (window,) = windows_of([], [], [(2.0, {})])
    assert window.requests_per_s == 0
    assert math.isnan(window.p50_ms)


@given(st.lists(st.floats(0.01, 9.9), min_size=1), st.lists(st.floats(0.1, 9.9), unique=True))
def test_every_answer_is_in_one_window(ended_s: list[float], cuts: list[float]) -> None:
    samples = [(at, dict[str, float]()) for at in (*sorted(cuts), 10.0)]
    windows = windows_of(ended_s, ended_s, samples)
    begins = [0.0, *(window.end_s for window in windows)]
    counted = [
        window.requests_per_s * (window.end_s - begin_s)
        for window, begin_s in zip(windows, begins, strict=False)
    ]
    assert sum(counted) == pytest.approx(len(ended_s))


def _windows(rates: list[float], memory: list[float], p50_ms: float = 1.0) -> list[SoakWindow]:
    return [
        SoakWindow(float(at), rate, p50_ms, 2.0, {"steady": 50.0, "other": mib})
        for at, (rate, mib) in enumerate(zip(rates, memory, strict=True), start=1)
    ]


def _verdict_of_p50(p50_ms: list[float]) -> Verdict:
    """Of a run whose windows differ in nothing else."""
    windows = [each for ms in p50_ms for each in _windows([100.0], [6.0], ms)]
    return verdict_of(windows, [_report(1, 1, 1)], [_report(1, 1, 1)])


def _report(count: int, soon_over: int, short: int) -> dict[str, object]:
    within = {"within_ms": {"20": soon_over}, "cpu_within_ms": {"20": short}}
    return {"pauses": {"count": count, **within}}


def test_the_last_fifth_is_compared_with_the_first() -> None:
    rates = [100.0] * 2 + [7.0] * 6 + [98.0, 99.0]
    memory = [200.0] * 2 + [900.0] * 6 + [205.0, 207.0]
    before, after = [_report(5, 3, 4)], [_report(9, 5, 8), _report(3, 1, 2)]
    verdict = verdict_of(_windows(rates, memory), before, after)
    assert verdict.throughput_drift == pytest.approx(-0.015)
    assert verdict.memory_drift == pytest.approx(0.03)
    assert (verdict.pauses, verdict.long_pauses, verdict.long_waits) == (7, 1, 3)


def test_a_single_window_has_no_drift() -> None:
    verdict = verdict_of(_windows([5.0], [6.0]), [_report(1, 1, 1)], [_report(2, 2, 2)])
    assert verdict == Verdict(0.0, 0.0, pauses=1, long_pauses=0, long_waits=0)
    assert verdict.passed


def test_a_run_that_began_without_an_answer_has_drifted_without_bound() -> None:
    verdict = verdict_of(_windows([0.0, 5.0], [6.0, 6.0]), [_report(1, 1, 1)], [_report(1, 1, 1)])
    assert verdict.throughput_drift == math.inf
    assert not verdict.passed


def test_answers_that_take_ten_times_as_long_in_the_end_fail_at_a_steady_rate() -> None:
    verdict = _verdict_of_p50([4.0] * 10 + [22.0] * 30 + [40.0] * 10)
    assert verdict.throughput_drift == 0
    assert verdict.latency_drift == pytest.approx(9)
    assert not verdict.passed


def test_a_few_slow_windows_at_the_end_are_not_the_servers() -> None:
    verdict = _verdict_of_p50([4.0] * 40 + [40.0] * 6 + [5.0] * 4)
    assert verdict.latency_drift == pytest.approx(0.25)
    assert verdict.passed


def test_a_run_that_answers_nothing_in_the_end_has_no_latency_to_pass() -> None:
    verdict = _verdict_of_p50([4.0] * 8 + [math.nan] * 2)
    assert math.isnan(verdict.latency_drift)
    assert not verdict.passed


@pytest.mark.parametrize(
    ("verdict", "passed"),
    [
        (Verdict(0.02, -0.02, 100, 0), True),
        (Verdict(0.02, -0.02, 100, 0, 3), True),
        (Verdict(-0.021, 0.0, 0, 0), False),
        (Verdict(0.0, 0.021, 0, 0), False),
        (Verdict(0.0, 0.0, 1, 1), False),
        (Verdict(0.0, 0.0, 0, 0, latency_drift=0.5), True),
        (Verdict(0.0, 0.0, 0, 0, latency_drift=-0.9), True),
        (Verdict(0.0, 0.0, 0, 0, latency_drift=0.51), False),
        (Verdict(0.0, 0.0, 0, 0, latency_drift=math.nan), False),
    ],
)
def test_all_aims_must_be_met(verdict: Verdict, passed: bool) -> None:
    assert verdict.passed == passed
