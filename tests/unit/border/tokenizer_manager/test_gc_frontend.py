"""Control of garbage collection from the front end, without the other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sglang.srt.utils.auth import add_api_key_middleware

from sglang_prefill_ext.border.http_server.own_routes import GC_PATH, add_gc_route
from sglang_prefill_ext.border.messages import GcReq
from sglang_prefill_ext.border.tokenizer_manager import gc_frontend
from sglang_prefill_ext.border.tokenizer_manager.gc_frontend import FrontendGc
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.process.collector import GcAction
from tests.unit.attach.engines import StubCollector
from tests.unit.waiting import until


class Manager:
    """A tokenizer manager whose messages come back at once from one scheduler."""

    def __init__(self, tokenizer_ipc_name: str | None = None) -> None:
        self.tokenizer_ipc_name = tokenizer_ipc_name
        self.rid_to_state: dict[str, Any] = {}
        self.sent: list[GcReq] = []
        self.come_back: Callable[[GcReq], None] = lambda _: None

    def auto_create_handle_loop(self) -> None:
        pass

    def _dispatch_to_scheduler(self, message: GcReq) -> None:
        message.http_worker_ipc = self.tokenizer_ipc_name
        self.sent.append(message)
        self.come_back(message)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> StubCollector:
    """Replaces the process's collector; the server has one front end and no detokenizer."""
    collector = StubCollector()
    serving = SimpleNamespace(skip_tokenizer_init=True, tokenizer_worker_num=1)
    for name, value in {
        "collector_of": collector,
        "get_serving": serving,
        "get_device": SimpleNamespace(gc_threshold=[9, 8, 7]),
        "get_parallel": SimpleNamespace(num_dp_ranks=1),
    }.items():
        monkeypatch.setattr(gc_frontend, name, lambda *_, value=value: value)
    return collector


def control(manager: Manager, idle_s: int = 10) -> FrontendGc:
    frontend: Any = SimpleNamespace(
        config=PrefillOnlyConfig(gc_idle_s=idle_s), exchange=SimpleNamespace(in_flight=0)
    )
    made = FrontendGc(manager, frontend)
    manager.come_back = made.take
    return made


async def test_a_round_asks_with_the_thresholds_of_the_server(collector: StubCollector) -> None:
    manager = Manager()
    reports, complete = await control(manager).act(GcAction.COLLECT)
    assert complete
    assert [each.role for each in reports] == ["stub"]
    (sent,) = manager.sent
    assert (sent.action, sent.gc_threshold) == (GcAction.COLLECT, [9, 8, 7])
    assert collector.asked == [(GcAction.COLLECT, False)]


async def test_a_front_end_acts_while_the_others_do(collector: StubCollector) -> None:
    manager = Manager()
    made = control(manager)
    coming_back = asyncio.get_running_loop().create_future()
    manager.come_back = coming_back.set_result
    asking = asyncio.create_task(made.act(GcAction.FREEZE))
    message = await coming_back
    await asyncio.sleep(0)
    assert collector.asked == [(GcAction.FREEZE, False)]
    made.take(message)
    reports, complete = await asking
    assert (len(reports), complete, len(collector.asked)) == (1, True, 1)


def test_without_the_flag_thresholds_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    unset = SimpleNamespace(gc_threshold=None)
    monkeypatch.setattr(gc_frontend, "get_device", lambda: unset)
    assert gc_frontend.thresholds_of_server() == [10_000, 10, 10]


async def test_a_silent_scheduler_leaves_the_round_incomplete(
    collector: StubCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc_frontend, "_TIMEOUT_S", 0.01)
    manager = Manager()
    made = control(manager)
    manager.come_back = lambda _: None
    assert await made.act(GcAction.STATS) == ([], False)


def test_requests_under_way_are_work(collector: StubCollector) -> None:
    manager = Manager()
    made = control(manager)
    manager.rid_to_state["1"] = object()
    made.take(GcReq(rid="2", action=GcAction.SETTLE))
    assert collector.asked == [(GcAction.SETTLE, True)]


async def test_after_the_freeze_the_server_settles_when_idle(
    collector: StubCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc_frontend, "_LOOK_S", 0.001)
    seen = iter(range(5))
    monkeypatch.setattr(gc_frontend, "_collections", lambda: next(seen, 5))
    monkeypatch.setattr(gc_frontend, "time", SimpleNamespace(monotonic=lambda: len(tick)))
    tick: list[None] = []
    manager = Manager()
    made = control(manager, idle_s=3)

    await made.freeze()
    await made.freeze()
    await until(lambda: tick.append(None) or len(manager.sent) == 3)  # time passes as it looks
    assert [sent.action for sent in manager.sent] == ["freeze", "freeze", "settle"]
    assert made._watch is not None
    made._watch.cancel()


async def test_an_idle_server_is_looked_after_whatever_went_wrong_once(
    collector: StubCollector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gc_frontend, "_LOOK_S", 0.001)
    looks: list[None] = []

    def show_pauses() -> None:
        looks.append(None)
        if len(looks) == 1:
            raise OSError("once")

    collector.show_pauses = show_pauses  # type: ignore[method-assign]
    made = control(Manager())
    await made.freeze()
    await until(lambda: len(looks) > 2)
    assert made._watch is not None
    made._watch.cancel()
    assert "OSError: once" in caplog.text


@pytest.mark.filterwarnings("ignore:ORJSONResponse")  # SGLang's way to say no
@pytest.mark.parametrize(
    ("keys", "given", "status"),
    [
        ({}, None, 200),
        ({"api_key": "a", "admin_api_key": "b"}, "a", 401),
        ({"api_key": "a", "admin_api_key": "b"}, "b", 200),
    ],
)
def test_the_route_takes_the_keys_of_administrative_routes(
    collector: StubCollector, keys: dict[str, str], given: str | None, status: int
) -> None:
    app = FastAPI()
    add_gc_route(app, control(Manager()))
    if keys:
        add_api_key_middleware(app, **({"api_key": None, "admin_api_key": None} | keys))
    headers = {"Authorization": f"Bearer {given}"} if given else {}
    with TestClient(app) as client:
        answer = client.post(GC_PATH, json={"action": "stats"}, headers=headers)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["complete"] is True
        assert [each["role"] for each in answer.json()["processes"]] == ["stub"]
