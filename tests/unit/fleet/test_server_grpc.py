"""`prefill_ext.v1` of a router over engines with a stub for the model; gRPC is real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sglang_prefill_ext.attach.messages import Stock, StockAnswer, StockError, StockScore
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet.fleet import Fleet
from sglang_prefill_ext.fleet.server import serve_grpc
from sglang_prefill_ext.fleet.settings import Engines
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.prefill_pb2_grpc import PrefillStub
from sglang_prefill_ext.grpc_frontend.settings import Listening
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.process.ports import free_port
from sglang_prefill_ext.wire.status import Status
from tests.unit.fleet.stub_engines import Stub, an_offer, served
from tests.unit.grpc_frontend.calls import id_request
from tests.unit.waiting import until

ITEMS = [[5 + n % 7] * (20 + n % 9) for n in range(60)]
GONE = "http://127.0.0.1:9"
KEY = "s3cret"


def opted_out() -> pb.ScoreRequest:
    request = id_request([3, 4], [[6], [7]])
    request.options.stock = True
    return request


@asynccontextmanager
async def routed(*stubs: Stub, more: tuple[str, ...] = (), key: str = "") -> AsyncIterator[Any]:
    """A fleet, and a channel to the gRPC server over it."""
    async with AsyncExitStack() as stack:
        for stub in stubs:
            stub.url = await stack.enter_async_context(served(stub.app()))
        fleet = Fleet(FrontendMetrics(), extra_work=10.0)
        listening = Listening(port=free_port(), grace_s=1.0)
        await stack.enter_async_context(fleet.running())
        fleet.set_engines(Engines((*(stub.url for stub in stubs), *more)))
        await fleet.wait_heard(60)
        stop = asyncio.Event()
        serving = asyncio.ensure_future(serve_grpc(fleet, listening, key, stop.is_set))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{listening.port}")
        await stack.enter_async_context(channel)
        await asyncio.wait_for(channel.channel_ready(), 60)
        yield fleet, channel
        stop.set()
        await serving


def scoring(channel: grpc.aio.Channel) -> PrefillStub:
    return PrefillStub(channel)  # type: ignore[no-untyped-call]


@pytest.mark.usefixtures("patience")
async def test_scores_come_from_both_engines_in_the_order_of_items() -> None:
    a, b = Stub(), Stub()
    async with routed(a, b) as (_, channel):
        answer = await scoring(channel).Score(id_request([3, 4], ITEMS, [5, 9]), timeout=60)
    found = np.frombuffer(answer.scores, "<f8").reshape(len(ITEMS), 2)
    wanted = [[np.exp(-row[-1] / 10), np.exp(-row[-1] / 5)] for row in ITEMS]
    assert np.allclose(found, wanted, atol=1e-6)
    assert answer.usage.path == pb.PATH_PACKED
    assert len(a.engine.rows) == len(b.engine.rows) == 1


async def test_calls_that_are_not_packed_are_handed_to_one_engine() -> None:
    stub = Stub()
    stub.engine.stock_outcome = StockAnswer("", [[0.25], [0.5]], 7)
    async with routed(stub) as (fleet, channel):
        answer = await scoring(channel).Score(opted_out(), timeout=60)
        (replica,) = fleet.replicas.values()
        assert not replica.whole
    assert np.frombuffer(answer.scores, "<f8").tolist() == [0.25, 0.5]
    assert (answer.usage.path, answer.usage.prompt_tokens) == (pb.PATH_ENGINE, 7)
    (call,) = stub.engine.stock_calls
    assert isinstance(call, StockScore)
    assert call.arguments["items"] == [[6], [7]]
    assert call.headers["x-prefill-only"] == "off"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.REFUSED, grpc.StatusCode.INVALID_ARGUMENT),
        (Status.REJECTED, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (Status.EXPIRED, grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
async def test_errors_of_such_calls_are_an_engines(status: Status, code: grpc.StatusCode) -> None:
    stub = Stub()
    stub.engine.stock_outcome = StockError("", status, "so it goes", field="items")
    async with routed(stub) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError, match="so it goes") as refused:
            await scoring(channel).Score(opted_out(), timeout=60)
    assert refused.value.code() is code


async def test_a_call_that_its_client_leaves_ends_at_the_engine() -> None:
    stub = Stub()  # which never answers such a call
    async with routed(stub) as (fleet, channel):
        call = scoring(channel).Score(opted_out(), timeout=60)
        await until(lambda: len(stub.engine.stock_calls) == 1)
        call.cancel()
        await until(lambda: stub.engine.abandoned == 1)
        await until(lambda: not fleet.in_flight)


async def broken(_call: Stock) -> StockAnswer | StockError:
    raise EngineUnavailableError("gone")


async def test_the_only_engine_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub()
    async with routed(stub) as (fleet, channel):
        monkeypatch.setattr(fleet.replicas[stub.url], "call", broken)
        with pytest.raises(grpc.aio.AioRpcError, match="gone") as refused:
            await scoring(channel).Score(opted_out(), timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_another_engine_is_asked_where_the_first_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = Stub(), Stub()
    b.engine.stock_outcome = StockAnswer("", [[0.25], [0.5]], 7)
    async with routed(a, b) as (fleet, channel):
        monkeypatch.setattr(fleet.replicas[a.url], "call", broken)
        fleet.replicas[b.url].whole = 9  # so that it is not the first
        answer = await scoring(channel).Score(opted_out(), timeout=60)
    assert answer.usage.prompt_tokens == 7
    assert len(b.engine.stock_calls) == 1


async def test_no_engine_is_an_error_at_once_and_the_health_says_so() -> None:
    async with routed(more=(GONE,)) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError, match="No engine of the fleet") as refused:
            await scoring(channel).Score(opted_out(), timeout=60)
        assert await _health(channel) == health_pb2.HealthCheckResponse.NOT_SERVING
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_clients_show_the_key_of_the_engines() -> None:
    async with routed(Stub(), key=KEY) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await scoring(channel).Score(id_request([3], [[5]]), timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        shown = (("authorization", f"Bearer {KEY}"),)
        answer = await scoring(channel).Score(id_request([3], [[5]]), timeout=60, metadata=shown)
        assert answer.scores
        assert await _health(channel) == health_pb2.HealthCheckResponse.SERVING


async def test_engines_of_another_model_take_over_what_is_under_way() -> None:
    old = Stub()
    new = Stub(offer=an_offer(settings={"weight version": "2"}))
    old.engine.fall_silent()
    async with routed(old) as (fleet, channel), served(new.app()) as new.url:
        asking = asyncio.ensure_future(
            scoring(channel).Score(id_request([3, 4], ITEMS, [5, 9]), timeout=60)
        )
        await until(lambda: bool(old.engine.link.sent))
        fleet.set_engines(Engines((new.url,)))
        assert (await asking).scores
    assert new.engine.rows == [len(ITEMS)]


async def _health(channel: grpc.aio.Channel) -> int:
    check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    return int((await check).status)
