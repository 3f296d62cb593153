from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.runtime.pauses import BOUNDS_MS, PauseRecorder


@pytest.fixture
def recorder() -> Iterator[PauseRecorder]:
    recorder = PauseRecorder()
    recorder.install()
    yield recorder
    recorder.uninstall()


@given(st.lists(st.floats(0, 5)))
def test_every_pause_is_in_the_buckets_that_are_wide_enough(pauses_s: list[float]) -> None:
    recorder = PauseRecorder()
    for pause_s in pauses_s:
        recorder.add(pause_s)
    summary = recorder.summary()
    assert summary.count == len(pauses_s)
    assert summary.total_ms == pytest.approx(1e3 * sum(pauses_s))
    assert summary.longest_ms == 1e3 * max(pauses_s, default=0)
    for bound in BOUNDS_MS:
        within = sum(pause_s * 1e3 <= bound for pause_s in pauses_s)
        assert summary.within_ms[str(bound)] == within
    assert recorder.take() == pauses_s
    assert recorder.take() == []


def test_collections_are_timed_while_installed(recorder: PauseRecorder) -> None:
    before = recorder.summary()
    gc.collect()
    after = recorder.summary()
    assert after.count > before.count
    assert after.longest_ms > 0
    assert after.total_ms >= after.longest_ms


def test_a_collection_that_began_before_is_not_counted() -> None:
    recorder = PauseRecorder()
    recorder._on_collection("stop", {})
    assert recorder.summary().count == 0
