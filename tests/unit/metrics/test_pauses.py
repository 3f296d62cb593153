from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from sglang_prefill_ext.metrics.pauses import BOUNDS_MS, PauseRecorder, pause_histogram


@pytest.fixture
def recorder() -> Iterator[PauseRecorder]:
    recorder = PauseRecorder()
    recorder.install()
    yield recorder
    recorder.uninstall()


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5))))
def test_every_pause_is_in_the_buckets_that_are_wide_enough(
    pauses_s: list[tuple[float, float]],
) -> None:
    recorder = PauseRecorder()
    for pause_s, cpu_s in pauses_s:
        recorder.add(pause_s, cpu_s)
    summary = recorder.summary()
    wall = [pause_s for pause_s, _ in pauses_s]
    cpu = [cpu_s for _, cpu_s in pauses_s]
    assert summary.count == len(pauses_s)
    assert summary.total_ms == pytest.approx(1e3 * sum(wall))
    for times, longest_ms, within_ms in (
        (wall, summary.longest_ms, summary.within_ms),
        (cpu, summary.cpu_longest_ms, summary.cpu_within_ms),
    ):
        assert longest_ms == 1e3 * max(times, default=0)
        for bound in BOUNDS_MS:
            assert within_ms[str(bound)] == sum(time_s * 1e3 <= bound for time_s in times)
    assert recorder.take() == wall
    assert recorder.take() == []


def test_collections_are_timed_while_installed(recorder: PauseRecorder) -> None:
    before, begin_s = recorder.summary(), time.perf_counter()
    gc.collect()
    after = recorder.summary()
    assert after.count > before.count
    assert after.longest_ms > 0
    assert after.total_ms >= after.longest_ms
    assert 0 < after.cpu_longest_ms <= 1e3 * (time.perf_counter() - begin_s)
    recorder.uninstall()
    gc.collect()
    assert recorder.summary() == after
    recorder.install()


def test_a_collection_that_began_before_is_not_counted() -> None:
    recorder = PauseRecorder()
    recorder._on_collection("stop", {})
    assert recorder.summary().count == 0


def test_pauses_are_a_histogram_in_seconds(registry: CollectorRegistry) -> None:
    labels = {"model_name": "m", "role": "scheduler"}
    histogram = pause_histogram(labels)
    for pause_s in (0.0004, 0.004, 0.019, 3.0):
        histogram.observe(pause_s)
    name = "sglang:prefill_only_gc_pause_seconds"
    assert registry.get_sample_value(f"{name}_count", labels) == 4
    assert registry.get_sample_value(f"{name}_sum", labels) == pytest.approx(3.0234)
    bounds = {"0.001": 1, "0.002": 1, "0.005": 2, "0.02": 3, "1.0": 3, "+Inf": 4}
    for bound, count in bounds.items():
        assert registry.get_sample_value(f"{name}_bucket", labels | {"le": bound}) == count
