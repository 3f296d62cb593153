"""Records of packed calls on a stand-in for SGLang's manager."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException
from prometheus_client import CollectorRegistry
from sglang.srt.observability.req_time_stats import APIServerReqTimeStats

from sglang_prefill_ext.border.tokenizer_manager.call_records import CallRecords
from sglang_prefill_ext.errors import (
    PackedForwardError,
    RequestAbortedError,
    RequestError,
    ServerBusyError,
)
from sglang_prefill_ext.frontend.answers import Served
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.stock_reason import StockReason
from tests.unit.border.collectors import collector, samples

SERVED = Served(int_array([3, 4]), int_array([2, 2]), new_tokens=1)
REQUEST = SimpleNamespace(scope={"path": "/v1/score"})


class Manager(SimpleNamespace):
    """Notes what is logged and dumped."""

    def __init__(self, registry: CollectorRegistry, *, shows: bool) -> None:
        self.seen: list[tuple[str, Any, Any]] = []
        super().__init__(
            rid_to_state={},
            enable_metrics=True,
            enable_priority_scheduling=False,
            enable_trace=False,
            metrics_collector=collector(registry),
            server_args=SimpleNamespace(disaggregation_mode="null"),
            request_logger=SimpleNamespace(
                log_requests=shows,
                log_finished_request=lambda call, out, request: self.note("log", call, out),
            ),
            request_metrics_exporter_manager=SimpleNamespace(exporter_enabled=lambda: False),
            dump_requests_folder="there" if shows else "",
            crash_dump_folder="there" if shows else None,
        )

    def note(self, how: str, call: Any, outcome: Any) -> None:
        self.seen.append((how, call, outcome["meta_info"]))

    def dump_requests(self, state: Any, outcome: Any) -> None:
        self.note("dump", state.obj, outcome)

    def record_request_for_crash_dump(self, state: Any, outcome: Any) -> None:
        self.note("crash", state.obj, outcome)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def manager(registry: CollectorRegistry) -> Manager:
    return Manager(registry, shows=True)


def contents() -> dict[str, Any]:
    return {"text": "words"}


async def test_where_nothing_shows_calls_their_contents_are_left_alone(
    registry: CollectorRegistry,
) -> None:
    def never() -> dict[str, Any]:
        raise AssertionError("asked")

    manager = Manager(registry, shows=False)
    with CallRecords(manager).keeping(None, 1, never) as record:
        record.served = SERVED
    assert (record.call.route, record.call.text, manager.seen) == ("", None, [])
    assert samples(registry)["num_requests_total"] == 2


@pytest.mark.parametrize(
    ("schedules", "priority", "label"),
    [(True, None, "1"), (True, 7, "7"), (True, 0, "0"), (False, 7, "")],
)
async def test_a_call_is_counted_under_its_priority(
    manager: Manager, registry: CollectorRegistry, schedules: bool, priority: int | None, label: str
) -> None:
    manager.enable_priority_scheduling, manager.default_priority_value = schedules, 1
    with CallRecords(manager).keeping(REQUEST, 2, contents, priority=priority) as record:
        record.served = SERVED
    labels = {"model_name": "m", "priority": label, "is_streaming": "false"}
    assert registry.get_sample_value("num_requests_total", labels) == 2


async def test_a_record_has_the_names_that_the_client_has_given(
    manager: Manager, registry: CollectorRegistry
) -> None:
    other = manager.rid_to_state["c"] = SimpleNamespace(abort_sent=False)

    async def work() -> None:
        with CallRecords(manager).keeping(REQUEST, 2, contents, ["a", "b"]) as record:
            assert manager.rid_to_state == {"a": record.state, "b": record.state, "c": other}
            assert not await record.is_disconnected()
            manager.rid_to_state["a"].abort_sent = True
            assert await record.is_disconnected()
            raise RequestAbortedError

    with pytest.raises(RequestAbortedError):
        await work()
    assert manager.rid_to_state == {"c": other}
    assert [meta["id"] for _, _, meta in manager.seen] == ["a"] * 3
    assert samples(registry) == {}  # SGLang has counted it


def test_a_name_that_another_request_has_is_left_to_sglang(
    manager: Manager, registry: CollectorRegistry
) -> None:
    records = CallRecords(manager)
    with (
        records.keeping(REQUEST, 1, contents, ["a"]) as first,
        pytest.raises(StockPathTaken),
        records.keeping(REQUEST, 2, contents, ["b", "a"]),
    ):
        pass
    assert manager.rid_to_state == {}
    assert not first.state.abort_sent


@pytest.mark.parametrize(
    "kind", [PackedForwardError, ServerBusyError, RequestAbortedError, ZeroDivisionError]
)
async def test_a_call_that_ends_badly_is_shown_and_counted_only_if_it_was_aborted(
    manager: Manager, registry: CollectorRegistry, kind: type[Exception]
) -> None:
    with pytest.raises(kind), CallRecords(manager).keeping(REQUEST, 5, contents):
        raise kind("what happened")
    assert manager.rid_to_state == {}
    for _, _, meta in manager.seen:
        assert meta["finish_reason"] == {"type": "abort", "message": "what happened"}
    assert len(manager.seen) == 3
    aborted = {"num_aborted_requests_total": 5} if kind is RequestAbortedError else {}
    assert samples(registry) == aborted


async def test_a_call_that_is_cancelled_is_shown_and_counted_as_aborted(
    manager: Manager, registry: CollectorRegistry
) -> None:
    with pytest.raises(asyncio.CancelledError), CallRecords(manager).keeping(REQUEST, 5, contents):
        raise asyncio.CancelledError
    assert [meta["finish_reason"]["type"] for _, _, meta in manager.seen] == ["abort"] * 3
    assert samples(registry) == {"num_aborted_requests_total": 5}


async def test_an_error_that_is_not_raised_is_shown(
    manager: Manager, registry: CollectorRegistry
) -> None:
    with CallRecords(manager).keeping(REQUEST, 5, contents) as record:
        record.error = ServerBusyError("too much")
    assert [meta["finish_reason"]["message"] for _, _, meta in manager.seen] == ["too much"] * 3
    assert samples(registry) == {}


async def test_a_call_is_traced_once_it_is_not_sglangs(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace that began and never ended would be shown as an error."""
    begun: list[str] = []
    noting = lambda _times, name, *_about: begun.append(name)  # noqa: E731
    monkeypatch.setattr(APIServerReqTimeStats, "init_trace_ctx", noting)
    manager.enable_trace = True
    with pytest.raises(StockPathTaken), CallRecords(manager).keeping(REQUEST, 1, contents, ["a"]):
        raise StockPathTaken(StockReason.OPTED_OUT)
    with CallRecords(manager).keeping(REQUEST, 1, contents, ["b"]) as record:
        record.served = SERVED
    assert begun == ["b"]


@pytest.mark.parametrize(
    "error",
    [
        StockPathTaken(StockReason.OPTED_OUT),
        RequestError("wrong"),
        HTTPException(404),
        UnicodeError("wrong"),
    ],
)
async def test_what_sglang_serves_or_refuses_is_not_ours_to_show(
    manager: Manager, registry: CollectorRegistry, error: Exception
) -> None:
    with pytest.raises(type(error)), CallRecords(manager).keeping(REQUEST, 1, contents):
        raise error
    assert (manager.rid_to_state, manager.seen, samples(registry)) == ({}, [], {})
