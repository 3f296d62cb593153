from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.metrics.pauses import BOUNDS_MS, PauseRecorder


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
    before = recorder.summary()
    gc.collect()
    after = recorder.summary()
    assert after.count > before.count
    assert after.longest_ms > 0
    assert after.total_ms >= after.longest_ms
    assert after.cpu_longest_ms > 0


def test_a_collection_that_began_before_is_not_counted() -> None:
    recorder = PauseRecorder()
    recorder._on_collection("stop", {})
    assert recorder.summary().count == 0
