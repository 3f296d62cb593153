"""A whole request over stand-ins for replicas."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from starlette.requests import Request

from sglang_prefill_ext.errors import EngineUnavailableError, RequestError
from sglang_prefill_ext.fleet.loads import Loads
from sglang_prefill_ext.fleet.planning.cost import Speed
from sglang_prefill_ext.fleet.proxy import NotSentError, hand_on, http_session
from sglang_prefill_ext.fleet.replica import Replica
from sglang_prefill_ext.fleet.replica_load import ReplicaLoad
from sglang_prefill_ext.fleet.whole import WholeRequests
from sglang_prefill_ext.process.ports import KEEPALIVE
from tests.unit.fleet.stub_engines import Stub, served


def whole_of(*names: str) -> tuple[WholeRequests, Loads]:
    loads = Loads()
    for name in names:
        loads[name] = ReplicaLoad(Speed(1e-3, 1e-5), 0.0)
    replicas = {name: cast(Replica, SimpleNamespace(url=name, whole=0)) for name in names}
    return WholeRequests(replicas, loads, Counter()), loads


@pytest.mark.parametrize("known", [False, True])
async def test_another_engine_is_asked_whether_or_not_the_failure_is_known(known: bool) -> None:
    whole, loads = whole_of("a", "b")

    async def serve(replica: Replica) -> str:
        if replica.url == "a":
            for _ in range(3 * known):
                loads["a"].probed(0.0, ok=False)
            raise EngineUnavailableError("It has gone.")
        return replica.url

    assert await whole.served(serve) == "b"


async def test_the_only_engine_is_not_asked_again() -> None:
    whole, _ = whole_of("a")
    asked = []

    async def serve(replica: Replica) -> str:
        asked.append(replica.url)
        raise EngineUnavailableError("It has gone.")

    with pytest.raises(EngineUnavailableError, match="It has gone"):
        await whole.served(serve)
    assert asked == ["a"]


async def test_a_request_counts_while_an_engine_answers_it_however_it_ends() -> None:
    whole, _ = whole_of("a")
    counts = []

    async def serve(replica: Replica) -> None:
        counts.append(replica.whole)
        if len(counts) == 1:
            raise EngineUnavailableError("It has gone.")

    with pytest.raises(EngineUnavailableError):
        await whole.served(serve)
    for _ in range(2):
        await whole.served(serve)
    assert counts == [1, 1, 1]


async def no_message() -> Any:
    await asyncio.Event().wait()


async def no_send(_message: Any) -> None:
    pass


@pytest.mark.parametrize(("given", "told"), [("1000000", 400_000), ("1", 1), ("0", 0), ("", None)])
async def test_an_engine_that_is_asked_later_has_the_time_that_is_left(
    given: str, told: int | None
) -> None:
    stub = Stub()
    headers = [(b"x-prefill-only-timeout-ms", given.encode())] if given else []
    scope = {"type": "http", "method": "POST", "path": "/x", "query_string": b""}
    request = Request(scope | {"headers": headers}, receive=no_message)
    request.state.came_ms = time.time() * 1e3 - 600_000
    async with served(stub.app()) as url, aiohttp.ClientSession() as http:
        await hand_on(http, url, request, b"", no_send)
    if told is None:
        assert stub.timeout is None
    else:
        assert stub.timeout is not None
        assert told * 0.5 <= int(stub.timeout) <= told


async def test_a_host_that_vanishes_is_noticed() -> None:
    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, http_session() as http, http.get(url) as answer:
        assert answer.connection is not None
        assert answer.connection.transport is not None
        own = answer.connection.transport.get_extra_info("socket")
        assert [own.getsockopt(*option[:2]) for option in KEEPALIVE] == [1, 30, 10, 3, 60_000]


async def test_what_is_no_path_reaches_no_engine() -> None:
    scope = {"type": "http", "method": "GET", "query_string": b"", "headers": []}
    async with aiohttp.ClientSession() as http:
        for raw in (b"*", b"@127.0.0.1:9/"):
            request = Request(scope | {"path": "x", "raw_path": raw}, receive=no_message)
            with pytest.raises(RequestError, match="is no path"):
                await hand_on(http, "http://127.0.0.1:9", request, b"", no_send)


async def test_who_takes_no_connection_was_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sglang_prefill_ext.fleet.proxy._CONNECT_TIMEOUT",
        aiohttp.ClientTimeout(total=None, connect=0.2),
    )

    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for waiting in (first, second):  # the kernel accepts only these two
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        async with aiohttp.ClientSession() as http:
            url = f"http://127.0.0.1:{full.getsockname()[1]}"
            scope = {"type": "http", "method": "POST", "path": "/", "query_string": b""}
            request = Request(scope | {"headers": []}, receive=no_message)
            request.state.came_ms = 0.0
            with pytest.raises(NotSentError, match="cannot be reached"):
                await hand_on(http, url, request, b"", no_send)
