from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import pytest
import trustme
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.attach import http_connections
from sglang_prefill_ext.attach.http_connections import HttpConnection, HttpConnections
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.process.ports import KEEPALIVE

HANG_UP = b""
LIMIT_S = 10.0


def answer_bytes(body: bytes, status: int = 200, *headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} Some Reason",
        "date: now",
        *headers,
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Engine:
    """A server that answers with the bytes of a function; it notes what it got, by connection."""

    def __init__(self, answer: Callable[[bytes], bytes | None]) -> None:
        self.answer = answer
        self.seen: list[list[bytes]] = []
        self.left = asyncio.Event()
        self.serving: list[asyncio.Task[None] | None] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests: list[bytes] = []
        self.seen.append(requests)
        self.serving.append(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
                requests.append(head + await reader.readexactly(int(length or 0)))
                answer = self.answer(requests[-1])
                if answer == HANG_UP:
                    break
                if answer is not None:
                    writer.write(answer)
        self.left.set()
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


@asynccontextmanager
async def running(
    answer: Callable[[bytes], bytes | None], tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Engine, HttpConnections]]:
    engine = Engine(answer)
    async with await asyncio.start_server(engine.serve, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        engine.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        connections = HttpConnections(engine.url, {"authorization": "Bearer k"})
        try:
            yield engine, connections
        finally:
            connections.close()
            async with asyncio.timeout(10):
                await asyncio.gather(*filter(None, engine.serving))


def body_of(request: bytes) -> bytes:
    return request.partition(b"\r\n\r\n")[2]


async def test_requests_are_sent_whole_and_their_answers_returned() -> None:
    async with running(lambda request: answer_bytes(body_of(request)[::-1], 418)) as (engine, to):
        answers = [
            await to.post("/a?b=c", b"\x00\r\n\r\nxyz", {"priority": "3"}),
            await to.get("/facts", LIMIT_S),
        ]
    assert [(each.status, each.body) for each in answers] == [(418, b"zyx\n\r\n\r\x00"), (418, b"")]
    host = f"host: {engine.url.removeprefix('http://')}\r\nauthorization: Bearer k\r\n"
    posted = f"POST /a?b=c HTTP/1.1\r\n{host}priority: 3\r\ncontent-length: 8\r\n\r\n".encode()
    asked = f"GET /facts HTTP/1.1\r\n{host}\r\n".encode()
    assert engine.seen == [[posted + b"\x00\r\n\r\nxyz", asked]]  # over one connection


@given(
    bodies=st.lists(st.binary(max_size=50) | st.just(b"HTTP/1.1 200 OK\r\n\r\n"), max_size=3),
    sizes=st.lists(st.integers(1, 80), min_size=1),
)
def test_answers_are_read_however_they_arrive(bodies: list[bytes], sizes: list[int]) -> None:
    class Transport(asyncio.Transport):
        def is_closing(self) -> bool:
            return False

        def write(self, _data: bytes | bytearray | memoryview) -> None:
            pass

    async def read() -> list[bytes]:
        connection, read = HttpConnection(), []
        connection.connection_made(Transport())
        for body in bodies:
            waiting = asyncio.ensure_future(connection.exchange(b""))
            await asyncio.sleep(0)
            data, number = answer_bytes(body), 0
            while data:
                size = sizes[number % len(sizes)]
                connection.data_received(data[:size])
                data, number = data[size:], number + 1
            read.append((await waiting).body)
        return read

    assert asyncio.run(read()) == bodies


async def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    async with running(lambda request: answer_bytes(body_of(request))) as (engine, to):
        for _ in range(3):
            answers = await asyncio.gather(*(to.post("/", bytes([n]), {}) for n in range(4)))
            assert [each.body for each in answers] == [b"\x00", b"\x01", b"\x02", b"\x03"]
    assert len(engine.seen) == 4
    assert sum(map(len, engine.seen)) == 12


@pytest.mark.parametrize("closing", ["connection: close", "Connection:  Close "])
async def test_a_connection_that_is_to_close_is_not_used_again(closing: str) -> None:
    async with running(lambda _: answer_bytes(b"x", 200, closing)) as (engine, to):
        assert [(await to.get("/", LIMIT_S)).body for _ in range(2)] == [b"x", b"x"]
        assert list(map(len, engine.seen)) == [1, 1]


async def test_idle_connections_are_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "LONGEST_IDLE_S", 0.05)
    async with running(lambda _: answer_bytes(b"x")) as (engine, to):
        await asyncio.gather(to.get("/1", LIMIT_S), to.get("/2", LIMIT_S))
        await asyncio.sleep(0.1)
        await to.get("/3", LIMIT_S)
        await to.get("/4", LIMIT_S)
        assert list(map(len, engine.seen)) == [1, 1, 2]
        await asyncio.wait_for(engine.left.wait(), 5)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_host_that_vanishes_is_noticed(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def options() -> list[int]:
        async with running(lambda _: answer_bytes(b"x")) as (_, to):
            await to.get("/", LIMIT_S)
            ((_, kept),) = to._idle
            assert kept._transport is not None
            own = kept._transport.get_extra_info("socket")
            return [own.getsockopt(*option[:2]) for option in KEEPALIVE]

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(options()) == [1, 30, 10, 3, 60_000]


async def test_a_connection_that_the_engine_closed_while_idle_is_replaced() -> None:
    async with running(lambda _: answer_bytes(b"x")) as (engine, to):
        await to.get("/", LIMIT_S)
        (kept,) = to._idle
        kept[1].connection_lost(None)
        assert (await to.get("/", LIMIT_S)).body == b"x"
        assert list(map(len, engine.seen)) == [1, 1]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (HANG_UP, "closed the connection"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "content-length"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "content-length"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1e3\r\n\r\n", "content-length"),
        (b"HTTP/1.1 200 OK\r\nx: content-length: 1\r\n\r\n", "content-length"),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", "HTTP/1.1"),
        (b"SSH-2.0-x\r\ncontent-length: 0\r\n\r\n", "HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000, "does not end"),
    ],
)
async def test_what_is_no_answer_is_an_error_and_ends_the_connection(
    answer: bytes, why: str
) -> None:
    async with running(lambda _: answer) as (engine, to):
        for _ in range(2):
            with pytest.raises(EngineUnavailableError, match=why):
                await to.post("/", b"x", {})
        assert list(map(len, engine.seen)) == [1, 1]


async def test_bytes_after_an_answer_end_the_connection() -> None:
    async with running(lambda _: answer_bytes(b"x") + b"y") as (engine, to):
        assert [(await to.get("/", LIMIT_S)).body for _ in range(2)] == [b"x", b"x"]
        assert list(map(len, engine.seen)) == [1, 1]


async def test_what_nobody_has_asked_for_is_not_taken_for_the_next_answer() -> None:
    async with running(lambda _: answer_bytes(b"x")) as (engine, to):
        await to.get("/", LIMIT_S)
        (kept,) = to._idle
        kept[1].data_received(b"HTTP/1.1 408 Request Timeout\r\n")  # the rest is yet to come
        assert (await to.get("/", LIMIT_S)).status == 200
        assert list(map(len, engine.seen)) == [1, 1]


async def test_a_connection_that_is_lost_as_soon_as_it_is_made_takes_no_request() -> None:
    class Lost(asyncio.Transport):
        def is_closing(self) -> bool:
            return True

        def write(self, _data: bytes | bytearray | memoryview) -> None:
            pass

    connection = HttpConnection()
    connection.connection_made(Lost())
    with pytest.raises(EngineUnavailableError, match="closed the connection"):
        await asyncio.wait_for(connection.exchange(b""), 5)


async def test_an_answer_to_who_has_just_left_ends_the_connection() -> None:
    connection, transport = HttpConnection(), Mock()
    transport.is_closing.return_value = False
    connection.connection_made(transport)
    asking = asyncio.ensure_future(connection.exchange(b""))
    await asyncio.sleep(0)
    asking.cancel()
    connection.data_received(answer_bytes(b"x"))
    transport.abort.assert_called_once_with()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_cancelled_request_drops_its_connection() -> None:
    async with running(lambda _: None) as (engine, to):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await to.post("/", b"", {})
        await asyncio.wait_for(engine.left.wait(), 5)


async def test_an_answer_may_have_a_limit_after_which_its_connection_is_dropped() -> None:
    async with running(lambda _: None) as (engine, to):
        with pytest.raises(EngineUnavailableError, match=r"no answer within 0\.2 s"):
            await to.get("/", 0.2)
        await asyncio.wait_for(engine.left.wait(), 5)


async def test_an_engine_that_is_not_there_is_an_error() -> None:
    async with running(lambda _: None) as (_, to):
        pass
    with pytest.raises(EngineUnavailableError, match="Errno 111"):
        await to.get("/", LIMIT_S)


async def test_a_connection_has_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "CONNECT_S", 0.1)
    async with running(lambda _: None) as (engine, _):
        silent = HttpConnections(engine.url.replace("http", "https"), {})  # it shakes no hands
        with pytest.raises(EngineUnavailableError, match=r"no connection within 0\.1 s"):
            await silent.get("/", LIMIT_S)


async def test_certificates_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    async with running(lambda _: answer_bytes(b"x"), tls) as (engine, to):
        with pytest.raises(EngineUnavailableError, match=r"certificate.*in SSL_CERT_FILE$"):
            await to.get("/", LIMIT_S)
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        monkeypatch.setattr(http_connections, "_tls", ssl.create_default_context)
        trusting = HttpConnections(engine.url, {})
        assert (await trusting.get("/", LIMIT_S)).body == b"x"
        trusting.close()
        elsewhere = HttpConnections(engine.url.replace("127.0.0.1", "localhost"), {})
        with pytest.raises(EngineUnavailableError, match=r"not valid for 'localhost'$"):
            await elsewhere.get("/", LIMIT_S)


async def test_an_engine_without_tls_is_told_from_one_that_is_not_there() -> None:
    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(EngineUnavailableError, match="its URL may be one of http"):
            await HttpConnections(f"https://127.0.0.1:{port}", {}).get("/", LIMIT_S)


def test_other_failures_of_tls_are_told_in_its_words() -> None:
    error = ssl.SSLError(1, "no shared cipher")
    error.reason = "NO_SHARED_CIPHER"
    assert "no shared cipher" in http_connections._unopened(error)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://host", ("host", 80)),
        ("https://host", ("host", 443)),
        ("https://[::1]:8443", ("::1", 8443)),
    ],
)
async def test_a_url_without_a_port_has_that_of_its_scheme(
    url: str, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def connect(_make: object, host: str, port: int, **_tls: object) -> NoReturn:
        asked.append((host, port))
        raise OSError

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect)
    with pytest.raises(EngineUnavailableError):
        await HttpConnections(url, {}).get("/", LIMIT_S)
    assert asked == [address]


async def test_a_host_that_cannot_be_looked_up_is_unavailable() -> None:
    connections = HttpConnections("http://a..b:9", {})
    with pytest.raises(EngineUnavailableError):
        await connections.get("/", LIMIT_S)
