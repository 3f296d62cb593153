from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.process.collector import (
    GROWN_OBJECTS,
    OFFERED,
    Collector,
    GcAction,
    action_of,
)


class Ring:
    """An object with a reference cycle: it is garbage when nothing else refers to it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector; afterwards the process's settings are restored.

    Objects of other tests are frozen, because collecting among them would take most of the time.
    """
    thresholds = gc.get_threshold()
    gc.disable()
    gc.freeze()
    collector = Collector("tester")
    yield collector
    collector.pauses.uninstall()
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    gc.enable()


def test_a_freeze_collects_first_and_sets_the_thresholds(collector: Collector) -> None:
    for _ in range(100):
        Ring()
    report = collector.perform(GcAction.FREEZE, "1", thresholds=[5000, 20, 30])
    assert (report.role, report.thresholds) == ("tester", [5000, 20, 30])
    assert report.collected >= 100
    assert report.frozen > 1000 > sum(report.objects)
    assert report.pauses.count >= 1


def test_unfreezing_hands_everything_back(collector: Collector) -> None:
    frozen = collector.perform(GcAction.FREEZE, "1").frozen
    report = collector.perform(GcAction.UNFREEZE, "2")
    assert report.frozen == 0
    assert report.objects[2] >= frozen * 0.9


def test_collecting_leaves_alone_what_is_frozen(collector: Collector) -> None:
    ring = Ring()
    frozen = collector.perform(GcAction.FREEZE, "1").frozen
    del ring
    for _ in range(100):
        Ring()
    kept = [Ring() for _ in range(100)]
    report = collector.perform(GcAction.COLLECT, "2")
    assert 1000 < report.frozen < frozen + len(kept)
    assert report.collected >= 100
    later = collector.perform(GcAction.COLLECT, "3")
    assert later.collected == 0
    assert later.collections[2] == report.collections[2] + 1


def test_freezing_anew_frees_what_was_frozen(collector: Collector) -> None:
    for thresholds in ((5000, 20, 30), (6000, 20, 30)):
        ring = Ring()
        collector.perform(GcAction.FREEZE, "1")
        frozen = weakref.ref(ring)
        del ring
        collector.freeze_anew(thresholds)
        assert frozen() is None
        assert gc.get_threshold() == thresholds
        assert gc.get_freeze_count() > 1000


def test_statistics_change_nothing(collector: Collector) -> None:
    Ring()
    before = gc.get_stats()
    report = collector.perform(GcAction.STATS, "1")
    assert gc.get_stats() == before
    assert report.collected == 0
    assert report.collections == [each["collections"] for each in before]


def test_a_request_that_comes_again_is_acted_on_once(collector: Collector) -> None:
    first = collector.perform(GcAction.COLLECT, "1")
    assert collector.perform(GcAction.COLLECT, "1") is first
    assert collector.perform(GcAction.COLLECT, "2") is not first


@pytest.mark.parametrize(
    ("frozen_before", "busy", "grown", "freezes"),
    [
        (True, False, True, True),
        (True, True, True, False),
        (True, False, False, False),
        (False, False, True, False),
    ],
)
def test_a_process_settles_if_idle_grown_and_frozen_before(
    collector: Collector, frozen_before: bool, busy: bool, grown: bool, freezes: bool
) -> None:
    before = collector.perform(GcAction.FREEZE if frozen_before else GcAction.UNFREEZE, "1")
    added = [[] for _ in range(GROWN_OBJECTS if grown else 10)]  # type: ignore[var-annotated]
    after = collector.perform(GcAction.SETTLE, "2", busy=busy)
    assert (after.frozen >= before.frozen + len(added)) == freezes
    assert (after.collections != before.collections) == freezes
    assert freezes or after.collected == 0


@pytest.mark.parametrize("action", OFFERED)
def test_an_action_is_read_from_json(action: GcAction) -> None:
    assert action_of(f'{{"action": "{action}"}}'.encode()) is action


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (b"", "body", "body is not JSON"),
        (b"\xff", "body", "body is not JSON"),
        (b"[" * 100_000, "body", "body is not JSON"),
        (b"[]", "body", "must be an object, got []"),
        (b"{}", "action", "action must be one of freeze, unfreeze, collect, stats, got None"),
        (b'{"action": "settle"}', "action", "got 'settle'"),
        (b'{"action": ["freeze"]}', "action", "got ['freeze']"),
        (b'{"action": "stats", "pid": 3}', "pid", "pid is not known here"),
    ],
)
def test_a_wrong_body_is_refused_by_field(body: bytes, field: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        action_of(body)
    assert caught.value.field == field
    assert words in str(caught.value)


def test_metrics_get_the_pauses_after_the_action() -> None:
    shown: list[float] = []
    collector = Collector("tester", SimpleNamespace(observe=shown.append))
    try:
        collector.perform(GcAction.COLLECT, "1")
    finally:
        collector.pauses.uninstall()
    assert len(shown) == collector.pauses.summary().count >= 1
