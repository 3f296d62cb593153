"""A whole front end, attached to a stub of an engine."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sglang_prefill_ext.attach.broker import Broker
from sglang_prefill_ext.client.grpc_calls import error_of
from sglang_prefill_ext.errors import ServerBusyError
from sglang_prefill_ext.grpc_frontend import prefill_pb2_grpc, servicer
from sglang_prefill_ext.grpc_frontend.server import Health
from sglang_prefill_ext.grpc_frontend.settings import Settings
from sglang_prefill_ext.process.ports import await_listener, free_port
from tests.unit.attach.engines import StubCollector, StubEngine
from tests.unit.grpc_frontend.calls import id_request
from tests.unit.waiting import until

OWN = (("grpc.use_local_subchannel_pool", 1),)
"""A connection for each channel."""

SERVICE = "prefill_ext.v1.Prefill"
REQUEST = id_request([1], [[2]])


@asynccontextmanager
async def serving(engine: StubEngine, path: Path, **given: Any) -> AsyncIterator[str]:
    """The address of a front end."""
    given = {"grace_s": 0} | given
    settings, stop = Settings(attach=path, port=free_port(), **given), asyncio.Event()
    async with Broker(engine, path).running():
        running = asyncio.ensure_future(servicer.serve(settings, stop))
        address = f"127.0.0.1:{settings.port}"
        async with grpc.aio.insecure_channel(address, OWN) as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
        yield address
        stop.set()
        await running


@pytest.fixture(autouse=True)
def _collectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "Collector", lambda _: StubCollector())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


def watching(channel: grpc.aio.Channel, **metadata: Any) -> Any:
    return health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), **metadata)


async def test_the_health_is_that_of_the_engine() -> None:
    shown = Health(8)

    async def statuses() -> list[str]:
        await asyncio.sleep(0)
        asked = [health_pb2.HealthCheckRequest(service=name) for name in ("", SERVICE)]
        answers = [await shown.Check(each, None) for each in asked]
        return [health_pb2.HealthCheckResponse.ServingStatus.Name(each.status) for each in answers]

    assert await statuses() == ["NOT_SERVING"] * 2
    for serving in (True, False, False, True):
        shown.show(serving)
        assert await statuses() == ["SERVING" if serving else "NOT_SERVING"] * 2


async def test_calls_over_the_limit_are_refused_and_those_under_way_answered(path: Path) -> None:
    engine = StubEngine(silent=True)
    async with (
        serving(engine, path, max_calls=2) as address,
        grpc.aio.insecure_channel(address, OWN) as first,
        grpc.aio.insecure_channel(address, OWN) as second,
    ):
        stubs = [prefill_pb2_grpc.PrefillStub(each) for each in (first, second)]  # type: ignore[no-untyped-call]
        waiting = [stubs[0].Score(REQUEST) for _ in range(2)]
        await until(lambda: len(engine.link.sent) == 2)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await asyncio.wait_for(stubs[1].Score(REQUEST), 60)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert isinstance(error_of("Score", refused.value), ServerBusyError)  # so clients repeat it
        for rid, rows in engine.link.sent:
            engine.exchange.deliver(rid, engine.answer(rows))
        for call in waiting:
            assert (await asyncio.wait_for(call, 60)).scores
        again = asyncio.ensure_future(stubs[1].Score(REQUEST, timeout=60))
        await until(lambda: len(engine.link.sent) == 3)
        again.cancel()


async def test_a_new_front_end_takes_no_connection_before_it_can_serve(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "_ATTACH_S", 60.0)
    settings, stop = Settings(attach=path, port=free_port(), grace_s=0), asyncio.Event()
    address = (settings.host, settings.port)
    running = asyncio.ensure_future(servicer.serve(settings, stop))
    await asyncio.sleep(0.2)
    with socket.socket() as client:
        assert client.connect_ex(address) == errno.ECONNREFUSED
    async with Broker(StubEngine(), path).running():
        assert await asyncio.to_thread(await_listener, *address, 60)
        stop.set()
        await running


@pytest.mark.parametrize("max_calls", [8, 2])
async def test_so_many_may_watch_the_health(path: Path, max_calls: int) -> None:
    async with (
        serving(StubEngine(), path, max_calls=max_calls) as address,
        grpc.aio.insecure_channel(address, OWN) as channel,
    ):
        watch = watching(channel)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="Use Check") as refused:
            await watching(channel).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        watch.cancel()

        async def let_in() -> bool:
            try:
                return bool(await watching(channel).read())
            except grpc.aio.AioRpcError:
                return False

        while not await let_in():  # noqa: ASYNC110 (once the front end has noticed)
            await asyncio.sleep(0.01)


async def test_who_watches_the_health_hears_of_a_shutdown_and_delays_it_not(path: Path) -> None:
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(StubEngine(), path, grace_s=60))
        async with grpc.aio.insecure_channel(address, OWN) as channel:
            watch = watching(channel)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            await asyncio.wait_for(stack.aclose(), 20)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert await watch.read() is grpc.aio.EOF
            assert await watch.code() is grpc.StatusCode.OK


async def test_who_shows_no_token_may_check_the_health_and_not_watch_it(
    path: Path, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("right")
    async with (
        serving(StubEngine(), path, tokens=tokens) as address,
        grpc.aio.insecure_channel(address, OWN) as channel,
    ):
        check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert (await check).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await watching(channel).read()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        known = (("authorization", "Bearer right"),)
        assert await watching(channel, metadata=known).read()
