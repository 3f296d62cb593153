"""A router over engines with a stub for the model; HTTP is real."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest
from msgspec.structs import replace

from sglang_prefill_ext.border.http_server import carrier_routes
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet import fleet as fleet_module
from sglang_prefill_ext.fleet.fleet import Fleet
from sglang_prefill_ext.fleet.router import LONGEST_UNKNOWN, Router
from sglang_prefill_ext.fleet.selection import Selection
from sglang_prefill_ext.fleet.settings import Engines
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.process.collector import Collector
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.status import Status
from sglang_prefill_ext.wire.stock_reason import StockReason
from tests.unit.attach.engines import facts
from tests.unit.fleet.stub_engines import Stub, an_offer, served
from tests.unit.waiting import until

ITEMS = [[5 + n % 7] * (20 + n % 9) for n in range(60)]
SCORE = {"query": [3, 4], "items": ITEMS, "label_token_ids": [5, 9]}


@pytest.fixture(autouse=True)
def _engines_are_asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "BEAT_S", 0.1)


@dataclass
class Routed:
    http: httpx.AsyncClient
    fleet: Fleet
    stubs: Sequence[Stub]

    async def score(self, **headers: str) -> httpx.Response:
        return await self.http.post("/v1/score", json=SCORE, headers=headers)

    async def page(self) -> Any:
        """The status page."""
        return (await self.http.get("/prefill_only/status")).json()

    async def wait_for(self, **healths: int) -> None:
        """Wait until the replicas are of these healths."""
        async with asyncio.timeout(60):
            while True:
                page = await self.page()
                found = [each["health"] for each in page["replicas"]]
                if all(found.count(name) == count for name, count in healths.items()):
                    return
                await asyncio.sleep(0.05)

    async def whys(self) -> list[str]:
        return [each["why"] for each in (await self.page())["replicas"]]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector("fleet_router")
    try:
        yield collector
    finally:
        collector.pauses.uninstall()


@asynccontextmanager
async def routed(*stubs: Stub, more: Sequence[str] = (), **options: Any) -> AsyncIterator[Routed]:
    async with AsyncExitStack() as stack:
        for stub in stubs:
            stub.url = await stack.enter_async_context(served(stub.app()))
        metrics = FrontendMetrics()
        key = options.get("api_key", "")
        fleet = Fleet(
            metrics,
            on_session=lambda session: router.begin(session),
            **({"extra_work": 10.0} | options),
        )
        collector = stack.enter_context(collecting())
        router = Router(fleet, metrics, collector, api_key=key)
        await stack.enter_async_context(fleet.running())
        fleet.set_engines(Engines((*(stub.url for stub in stubs), *more)))
        await fleet.wait_heard(60)
        url = await stack.enter_async_context(served(router))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        yield Routed(http, fleet, stubs)


@pytest.mark.usefixtures("patience")
async def test_scores_come_from_both_engines_in_the_order_of_items() -> None:
    a, b = Stub(), Stub()
    async with routed(a, b) as one:
        answer = await one.score()
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-prefill-only-arrays"] == "int32"
    wanted = [[np.exp(-row[-1] / 10), np.exp(-row[-1] / 5)] for row in ITEMS]
    assert np.allclose(answer.json()["scores"], wanted, atol=1e-6)
    tokens = sum(map(len, ITEMS)) + 2 * len(ITEMS)
    assert answer.json()["usage"]["prompt_tokens"] == tokens
    assert len(a.engine.rows) == len(b.engine.rows) == 1
    assert a.engine.rows[0] + b.engine.rows[0] == len(ITEMS)
    assert not a.whole
    assert not b.whole


async def test_texts_are_encoded_in_the_router() -> None:
    a, b = Stub(), Stub()
    body = {"query": "a ", "items": ["b", "c", "b c"] * 40, "label_token_ids": [5]}
    async with routed(a, b) as one:
        found = (await one.http.post("/v1/score", json=body)).json()["scores"]
    assert np.allclose(found, [[np.exp(-0.2)], [np.exp(-0.3)], [np.exp(-0.3)]] * 40)


async def test_while_an_engine_is_silent_it_is_told_why_and_not_that_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    first, second = Stub(), Stub()
    async with routed(first, second) as one:
        second.broken = True
        await one.wait_for(up=1, down=1)
        told = caplog.text
        assert "It refuses with HTTP 500" in one.fleet.replicas[second.url].why
        second.broken = False
        await one.wait_for(up=2)
        assert not one.fleet.replicas[second.url].why
    assert told.count("is in the fleet") == 2


async def test_the_page_tells_of_garbage_collection() -> None:
    async with routed(Stub()) as one:
        before = (await one.page())["garbage_collection"]
        gc.collect()
        after = (await one.page())["garbage_collection"]
    assert (after["pid"], after["role"]) == (os.getpid(), "fleet_router")
    assert after["pauses"]["count"] > before["pauses"]["count"]


async def test_documents_are_ranked() -> None:
    body = {"query": "a", "documents": ["b", "c", "a"], "top_n": 2, "return_documents": False}
    async with routed(Stub(), Stub()) as one:
        found = (await one.http.post("/v1/rerank", json=body)).json()
    assert [each["index"] for each in found] == [1, 0]
    wanted = [1 / (1 + np.exp(-last / 10)) for last in (3, 2)]  # the tokens of "c" and "b"
    assert np.allclose([each["score"] for each in found], wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/generate", b'{"text": "a"}'),
        ("/v1/score", b"{"),
        ("/v1/score", b'{"query": [5], "items": [[700]], "label_token_ids": [5]}'),
        ("/v1/score", b'{"query": [5], "items": [[7]], "label_token_ids": [5], "more": 1}'),
        ("/v1/rerank", b'{"query": "", "documents": ["a"]}'),
        ("/v1/embeddings", b'{"input": "a"}'),
        ("/a%20b/c", b""),
    ],
)
async def test_everything_else_is_handed_on_unchanged(path: str, content: bytes) -> None:
    stub = Stub()
    headers = {"content-type": "application/json", "x-mine": "kept"}
    async with routed(stub) as one:
        answer = await one.http.post(f"{path}?q=%2F", content=content, headers=headers)
    assert (answer.status_code, answer.content) == (418, b"whole answer")
    assert answer.headers["x-own"] == "kept"
    assert answer.headers["content-type"] == "text/odd"
    assert stub.whole == [(path.replace("%20", " "), content)]


async def test_a_redirect_does_not_lead_past_the_router() -> None:
    async with routed(Stub()) as one:
        answer = await one.http.post("/v1/score/?a=b", json=SCORE)
    assert (answer.status_code, answer.headers["location"]) == (307, "/v1/score?a=b")


@pytest.mark.parametrize("engines", [1, 0])
async def test_pages_of_any_origin_may_read_answers_of_the_router(engines: int) -> None:
    origin = {"origin": "http://page"}
    async with routed(*[Stub()] * engines, more=["http://127.0.0.1:9"]) as one:
        answer = await one.score(**origin)
    assert answer.status_code == (200 if engines else 503)
    assert answer.headers["access-control-allow-origin"] == "http://page"
    assert answer.headers["access-control-allow-credentials"] == "true"


@pytest.mark.parametrize(
    ("status", "code"),
    [(Status.REJECTED, 429), (Status.EXPIRED, 504), (Status.FAILED, 500), (Status.ABORTED, 503)],
)
async def test_bad_ends_are_answered_as_by_an_engine(status: Status, code: int) -> None:
    stub = Stub()
    stub.engine.end = PackedResult(status, "so it goes", retry_after_s=2.4)
    async with routed(stub) as one:
        answer = await one.score()
    assert answer.status_code == code
    body = answer.json()
    assert body.keys() == {"object", "message", "type", "param", "code"}
    assert "so it goes" in body["message"]
    assert (answer.headers.get("retry-after") == "3") == (code == 429)


async def test_what_cannot_be_packed_is_handed_on() -> None:
    stub = Stub()
    stub.engine.end = PackedResult(Status.NOT_FINITE)
    async with routed(stub) as one:
        answer = await one.score()
        counters = (await one.page())["counters"]
    assert answer.content == b"whole answer"
    assert json.loads(stub.whole[0][1]) == SCORE
    # The engine counts it by path and reason, and nobody a second time.
    assert (counters["requests"], counters["fallbacks"]) == ({}, {})
    assert counters["fleet"]["whole"] == 1


async def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    async with routed(Stub(dies_within=True), Stub(dies_within=True)) as one:
        with pytest.raises(httpx.RemoteProtocolError):
            await one.http.post("/generate", json={})
        assert (await one.http.get("/health")).status_code == 200


async def test_without_engines_every_request_is_refused_at_once() -> None:
    async with routed(more=["http://127.0.0.1:9"]) as one:
        for path in ("/v1/score", "/generate"):
            answer = await one.http.post(path, json=SCORE)
            assert answer.status_code == 503
            assert answer.json()["code"] == 503
        assert (await one.http.get("/health")).status_code == 503


async def test_an_engine_that_differs_is_not_used() -> None:
    stubs = Stub(), Stub(), Stub(offer=an_offer(facts=facts(vocab_size=50)))
    async with routed(*stubs) as one:
        await one.wait_for(up=2, refused=1)
        assert (await one.score()).status_code == 200
        page = await one.page()
        assert "size of the vocabulary" in page["replicas"][2]["why"]
        # The engine is corrected, and so joins the fleet.
        stubs[2].offer = stubs[0].offer
        await one.wait_for(up=3)
        # The weights of most engines are replaced, one after the other.
        for stub in stubs:
            stub.offer = replace(stub.offer, settings={"weight version": "2"})
        await one.wait_for(up=3)
        assert (await one.score()).status_code == 200


async def test_an_engine_in_long_forwards_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier_routes, "_SCHEDULERS_WAIT_S", 0.05)
    async with routed(Stub(thinks_s=0.3)) as one:
        await one.wait_for(up=1)
        assert (await one.score()).status_code == 200


async def test_an_engine_whose_schedulers_are_silent_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(carrier_routes, "_SCHEDULERS_WAIT_S", 0.05)
    async with routed(Stub(), Stub(thinks_s=600)) as one:
        await one.wait_for(up=1, unknown=1)
        silent = one.fleet.replicas[one.stubs[1].url]
        await until(lambda: silent.offer is not None)
        page = (await one.page())["replicas"][1]
        assert page["health"] == "unknown"
        assert page["why"] == "Its schedulers have not answered yet."


async def test_an_engine_that_is_late_and_whose_schedulers_fall_silent_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stubs = Stub(), Stub()
    async with routed(*stubs) as one:
        await one.wait_for(up=2)
        one.fleet.loads[stubs[1].url].sent(0.001, time.monotonic())
        await one.wait_for(up=1, suspect=1)
        assert await one.whys() == ["", "It is late with parts of requests, or has failed at some."]
        monkeypatch.setattr(carrier_routes, "_SCHEDULERS_WAIT_S", 0.01)
        monkeypatch.setattr(carrier_routes, "_SCHEDULERS_AGE_S", 0.0)
        stubs[1].thinks_s = 600
        silent = one.fleet.replicas[stubs[1].url]
        await until(lambda: silent.why == "Its schedulers do not answer.")


async def test_a_paused_engine_gets_no_work_while_there_is_another() -> None:
    stubs = Stub(), Stub()
    async with routed(*stubs) as one:
        await one.wait_for(up=2)
        stubs[0].engine.paused = True
        await one.wait_for(up=1, suspect=1)
        assert (await one.whys())[0] == "It is paused; /continue_generation ends that."
        for _ in range(3):
            assert (await one.http.post("/v1/score", json=SCORE)).status_code == 200
            assert (await one.http.post("/generate", json={})).status_code == 418
        assert not stubs[0].whole
        assert not stubs[0].engine.rows
        stubs[0].engine.paused = False
        await one.wait_for(up=2)


async def test_routers_of_two_engines_that_differ_all_use_the_older_one() -> None:
    stubs = Stub(), Stub(offer=an_offer(model_path="n"))
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(routed(*stubs))
        urls = [stub.url for stub in reversed(stubs)]
        other = await stack.enter_async_context(routed(more=urls))
        assert other.fleet.offer == one.fleet.offer == stubs[0].offer
        assert "--model-path: 'n', the others have 'm'" in (await other.whys())[0]


async def test_an_engine_that_declines_rows_does_not_end_packing() -> None:
    declining, other = Stub(), Stub()
    declining.engine.end = PackedResult(Status.DECLINED, StockReason.KNOWN_ANSWERS_DIFFER)
    async with routed(declining, other) as one:
        for _ in range(3):
            assert (await one.score()).status_code == 200
        assert sum(other.engine.rows) == 3 * len(ITEMS)
        assert not declining.whole + other.whole
        # Once it says so by itself, it is taken out.
        declined = facts(declined=StockReason.KNOWN_ANSWERS_DIFFER)
        declining.offer = an_offer(facts=declined)
        await one.wait_for(up=1, refused=1)


async def test_only_who_shows_the_key_has_requests_divided() -> None:
    stub = Stub()
    shown = {"authorization": "Bearer secret"}
    async with routed(stub, api_key="secret") as one:
        for headers in ({}, {"authorization": "Bearer other"}):
            answer = await one.score(**headers)
            assert answer.content == b"whole answer"  # an engine would refuse it
            page = await one.http.get("/prefill_only/status", headers=headers)
            assert page.status_code == 401
        for key in (shown, {"authorization": "bearer secret"}):  # SGLang takes both
            answer = await one.score(**key)
            assert answer.status_code == 200
    assert stub.engine.rows == [len(ITEMS)] * 2


@pytest.mark.parametrize("chunked", [False, True])
async def test_no_long_body_is_kept_for_who_does_not_show_the_key(chunked: bool) -> None:
    async def pieces(size: int) -> AsyncIterator[bytes]:
        yield b"a" * (size // 2)
        yield b"a" * (size - size // 2)

    stub, shown = Stub(), {"authorization": "Bearer secret"}
    async with routed(stub, api_key="secret") as one:
        asked = ((LONGEST_UNKNOWN, {}, 418), (LONGEST_UNKNOWN + 1, {}, 401))
        for size, headers, status in (*asked, (LONGEST_UNKNOWN + 1, shown, 418)):
            content = pieces(size) if chunked else b"a" * size
            answer = await one.http.post("/generate", content=content, headers=headers)
            assert answer.status_code == status
    assert [len(body) for _, body in stub.whole] == [LONGEST_UNKNOWN, LONGEST_UNKNOWN + 1]


async def test_headers_are_handed_on_byte_by_byte() -> None:
    async with routed(Stub()) as one:
        answer = await one.http.post("/x", headers={"x-mine": "für ١".encode()})
    assert (b"x-own", "für ١".encode()) in answer.headers.raw


async def test_a_client_that_leaves_ends_the_parts_of_its_request() -> None:
    a, b = Stub(), Stub()
    for stub in (a, b):
        stub.engine.fall_silent()
    async with routed(a, b) as one:
        asking = asyncio.ensure_future(one.score())
        await until(lambda: bool(a.engine.link.sent and b.engine.link.sent))
        asking.cancel()
        await until(lambda: bool(a.engine.link.aborted and b.engine.link.aborted))
        await until(lambda: not one.fleet.in_flight)


@dataclass
class Held:
    """Keeps the parts that an engine gets until they are let go."""

    stub: Stub
    parts: list[tuple[str, PackedRows]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stub.engine.link.on_send = lambda rid, rows: self.parts.append((rid, rows))

    def let_go(self) -> None:
        for rid, rows in self.parts:
            self.stub.engine.exchange.deliver(rid, self.stub.engine.answer(rows))


@asynccontextmanager
async def second_leaving() -> AsyncIterator[tuple[Routed, Held, asyncio.Future[httpx.Response]]]:
    """Two engines, the second of which leaves while it has a part of a request; and the request."""
    a, b = Stub(), Stub()
    held = Held(b)
    async with routed(a, b) as one:
        asking = asyncio.ensure_future(one.score())
        await until(lambda: bool(held.parts))
        one.fleet.set_engines(Engines((a.url,)))
        yield one, held, asking


async def test_an_engine_that_leaves_ends_what_it_has_and_gets_nothing_more() -> None:
    async with second_leaving() as (one, held, asking):
        first = one.stubs[0]
        page = await one.page()
        healths = {each["url"]: each["health"] for each in page["replicas"]}
        assert healths[held.stub.url] == "draining"
        held.let_go()
        assert (await asking).status_code == 200
        await until(lambda: list(one.fleet.replicas) == [first.url])
        parts = len(held.parts)
        assert (await one.score()).status_code == 200
        assert len(held.parts) == parts


async def test_an_engine_may_come_back_while_it_leaves() -> None:
    async with second_leaving() as (one, held, asking):
        first = one.stubs[0]
        one.fleet.set_engines(Engines((first.url, held.stub.url)))
        held.let_go()
        assert (await asking).status_code == 200
        await one.wait_for(up=2)
        assert set(one.fleet.replicas) == {first.url, held.stub.url}


async def test_an_engine_that_shuts_down_gets_no_more_work_until_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    first, second = Stub(), Stub()
    async with routed(first, second) as one:
        replica = one.fleet.replicas[second.url]
        second.engine.leaving = True
        await one.wait_for(up=1, draining=1)
        assert replica.why == "It is shutting down."
        assert (await one.score()).status_code == 200
        assert (first.engine.rows, second.engine.rows) == ([len(SCORE["items"])], [])
        second.engine.leaving = False
        await one.wait_for(up=2)
        assert not replica.why
    assert caplog.text.count("It is shutting down.") == 1


async def test_engines_of_another_model_take_over_what_is_under_way() -> None:
    old = Stub()
    new = Stub(offer=an_offer(settings={"weight version": "2"}))
    held = Held(old)
    async with routed(old) as one, served(new.app()) as new.url:
        asking = asyncio.ensure_future(one.score())
        await until(lambda: bool(held.parts))
        one.fleet.set_engines(Engines((new.url,)))
        assert (await asking).status_code == 200
        await until(lambda: list(one.fleet.replicas) == [new.url])
        assert old.engine.link.aborted
        assert new.engine.rows == [len(ITEMS)]


async def test_an_engine_that_stands_still_does_not_hold_up_a_new_router(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_module, "_OTHERS_S", 0.3)
    ended = asyncio.Event()

    async def say_nothing(asked: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        assert (await asked.read()).startswith(b"GET /prefill_only/facts")
        answer.close()
        ended.set()

    still = await asyncio.start_server(say_nothing, "127.0.0.1")
    port = still.sockets[0].getsockname()[1]
    async with still:
        async with routed(Stub(), more=[f"http://127.0.0.1:{port}"]) as one:
            assert (await one.score()).status_code == 200
            assert not ended.is_set(), "the router has waited for its first answer, up to 20 s"
        await ended.wait()


async def test_a_fleet_may_begin_without_engines() -> None:
    stub = Stub()
    async with routed() as one, served(stub.app()) as stub.url:
        assert (await one.score()).status_code == 503
        one.fleet.set_engines(Engines((stub.url,), {"RUNNING": 1}))
        await one.wait_for(up=1)
        assert (await one.score()).status_code == 200
        page = await one.page()
        assert page["deployment"] == {"RUNNING": 1}


async def test_an_engine_is_asked_again_whatever_its_silence_leads_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def fail(*_: object) -> None:
        asked.append(1)
        raise ValueError("no session")

    monkeypatch.setattr(Selection, "take_silence", fail)
    async with routed(Stub(broken=True)):
        await until(lambda: len(asked) > 1)


async def test_without_a_session_requests_go_whole_to_one_engine() -> None:
    stub = Stub()
    async with routed(stub) as one:
        assert (await one.score()).status_code == 200
        unread = facts(tokenizer="{")
        stub.offer = an_offer(facts=unread, settings={"weight version": "2"})
        async with asyncio.timeout(60):
            while (answer := await one.score()).status_code != 418:
                assert answer.status_code in (200, 503)
                await asyncio.sleep(0.1)
        await one.wait_for(up=1)
        with pytest.raises(EngineUnavailableError, match="cannot serve the engines of stub"):
            _ = one.fleet.session


async def test_the_timeout_of_engines_holds_though_they_all_hang() -> None:
    a = Stub(offer=an_offer(facts=facts(config=PrefillOnlyConfig(timeout_ms=300))))
    a.engine.fall_silent()
    async with routed(a) as one:
        answer = await one.score()
        assert (answer.status_code, one.fleet.in_flight) == (504, 0)
