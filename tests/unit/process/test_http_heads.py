from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from sglang_prefill_ext.process.http_heads import LONGEST_HEAD, LimitedHeads, limit_heads
from tests.unit.waiting import until

GET = b"GET / HTTP/1.1\r\nhost: x\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
PADDED = GET + b"x-a: " + b"a" * 1000 + b"\r\n\r\n"
PIECE = 1024


class Wire(asyncio.Transport):
    """Records what a server does to a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reads = True

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Connection:
    """A connection whose application answers with a body's length once `gate` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.early = False  # the head of an answer comes before the request was read
        self.lengths: list[int] = []
        self.headers: list[dict[bytes, bytes]] = []
        config = Config(self._application, interface="asgi3", log_config=None)
        self.protocol = LimitedHeads(config, ServerState(), {})
        self.wire = Wire()
        self.protocol.connection_made(self.wire)

    async def feed(self, data: bytes, piece: int = PIECE) -> int:
        """Send in pieces until the connection is closed or paused; return how many bytes."""
        for start in range(0, len(data), piece):
            if self.wire.closed or not self.wire.reads:
                return start
            self.protocol.data_received(data[start : start + piece])
            await self.settled()
        return len(data)

    async def settled(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2")]
        start = {"type": "http.response.start", "status": 200, "headers": headers}
        length, more = 0, True
        if self.early:
            await send(start)
        while more:
            message = await receive()
            length, more = length + len(message["body"]), message["more_body"]
        self.lengths.append(length)
        self.headers.append(dict(scope["headers"]))
        await self.gate.wait()
        if not self.early:
            await send(start)
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
async def connection() -> Any:
    connection = Connection()
    yield connection
    connection.gate.set()
    await connection.settled()
    connection.protocol.connection_lost(None)


ENDLESS = {
    "header": GET + b"x-a: ",
    "path": b"GET /",
    "trailer": CHUNKED + b"0\r\nx-trailer: ",
    "chunk extension": CHUNKED + b"1;extension=",
}


@pytest.mark.parametrize("beginning", ENDLESS.values(), ids=ENDLESS)
async def test_what_has_no_end_is_refused(connection: Connection, beginning: bytes) -> None:
    await connection.feed(beginning)
    sent = await connection.feed(b"a" * 2**20)
    assert sent <= LONGEST_HEAD + PIECE
    assert connection.wire.closed
    assert connection.wire.written.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"\r\nconnection: close\r\n" in connection.wire.written


@pytest.mark.parametrize("piece", [1, 2**16])
async def test_trailers_are_no_headers(connection: Connection, piece: int) -> None:
    trailers = b"authorization: Bearer key\r\nx-prefill-only-priority: 9\r\n"
    trailers += b"connection: upgrade\r\nupgrade: h2c\r\n"
    await connection.feed((CHUNKED + b"2\r\n{}\r\n0\r\n" + trailers + b"\r\n") * 2, piece)
    await connection.settled()
    assert connection.lengths == [2, 2]
    assert connection.headers == [{b"host": b"x", b"transfer-encoding": b"chunked"}] * 2


@pytest.mark.parametrize("piece", [1, 50, 2**16])
@pytest.mark.parametrize("body", [b"content-length: 2\r\n\r\n{}", None], ids=["length", "chunked"])
async def test_an_offer_of_another_protocol_loses_no_body(
    connection: Connection, piece: int, body: bytes | None
) -> None:
    """Java's HTTP client makes it with its first request."""
    offer = b"connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAEAAEAA\r\nupgrade: h2c\r\n"
    chunks = b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    for head in (GET + offer + b"\r\n", POST + offer + (body or chunks), PADDED):
        await connection.feed(head, piece)
        await connection.settled()
    assert connection.lengths == [0, 2, 0]
    assert connection.headers[1][b"http2-settings"] == b"AAEAAEAA"
    assert connection.wire.written.count(b"200 OK") == 3
    assert not connection.wire.closed


@pytest.mark.parametrize("piece", [50, 2**20])
async def test_offers_in_one_piece_lose_nothing(connection: Connection, piece: int) -> None:
    offer = b"connection: upgrade\r\nupgrade: h2c\r\n"
    asked = [
        POST + offer + b"content-length: %d\r\n\r\n" % size + b"a" * size for size in range(1, 9)
    ]
    await connection.feed(b"".join(asked) * 200, piece)  # more than Python can nest calls
    await until(lambda: len(connection.lengths) == 1600 or connection.wire.closed)
    assert connection.lengths == [*range(1, 9)] * 200
    assert not connection.wire.closed


async def test_websockets_get_their_own_protocol(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Mock()
    monkeypatch.setattr(connection.protocol, "ws_protocol_class", made)
    monkeypatch.setattr(connection.wire, "set_protocol", told := Mock())
    await connection.feed(GET + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n")
    told.assert_called_once_with(made.return_value)
    ((head,), _) = made.return_value.data_received.call_args
    assert head.startswith(GET)
    assert b"upgrade: websocket\r\n" in head
    assert (connection.lengths, connection.wire.written) == ([], b"")


@pytest.mark.parametrize("offer", [b"", b"connection: upgrade\r\nupgrade: h2c\r\n"])
async def test_connect_is_a_request_like_others(connection: Connection, offer: bytes) -> None:
    await connection.feed(b"CONNECT / HTTP/1.1\r\nhost: x\r\n" + offer + b"\r\n")
    assert connection.lengths == [0]
    assert connection.wire.written.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_what_was_read_is_not_kept(connection: Connection) -> None:
    data = POST + b"content-length: 100000\r\n\r\n" + b"a" * 100_000
    uses = sys.getrefcount(data)
    connection.protocol.data_received(data)
    await connection.settled()
    assert connection.lengths == [100_000]
    assert sys.getrefcount(data) == uses


@pytest.mark.parametrize("endless", [b"a:\r\n", b"a: b\r\n"])
async def test_headers_without_number_are_refused(connection: Connection, endless: bytes) -> None:
    assert await connection.feed(GET + endless * 2**18) <= LONGEST_HEAD + PIECE
    assert connection.wire.written.startswith(b"HTTP/1.1 431 ")
    assert len(connection.protocol.headers) <= (LONGEST_HEAD + PIECE) / len(endless)


async def test_earlier_requests_count_for_nothing(connection: Connection) -> None:
    for _ in range(40):
        await connection.feed(PADDED, piece=100)
    assert connection.wire.written.count(b"200 OK") == 40
    assert await connection.feed(GET + b"x-a: " + b"a" * 2**20) > LONGEST_HEAD - PIECE
    assert connection.wire.written.count(b"431 Request") == 1


async def test_requests_in_one_piece_are_answered(connection: Connection) -> None:
    long_head = GET + b"x-a: " + b"a" * 2 * LONGEST_HEAD + b"\r\n\r\n"
    await connection.feed(PADDED * 40 + GET, piece=2**20)  # and the beginning of one more
    await connection.feed(b"\r\n" + long_head, piece=2**20)
    for _ in range(42):
        await connection.settled()
    assert connection.wire.written.count(b"200 OK") == 42
    assert not connection.wire.closed


async def test_a_slow_head_is_read(connection: Connection) -> None:
    await connection.feed(PADDED, piece=1)
    assert connection.wire.written.count(b"200 OK") == 1


@pytest.mark.parametrize("piece", [7000, PIECE, 2**20])
async def test_bodies_have_no_limit(connection: Connection, piece: int) -> None:
    size = 2**20
    head = POST + b"content-length: %d\r\n\r\n" % size
    chunks = (b"400\r\n" + b"b" * 1024 + b"\r\n") * 1024 + b"0\r\nx-trailer: 1\r\n\r\n"
    for request in (head + b"b" * size, CHUNKED + chunks) * 2:
        sent = 0
        while sent < len(request):
            assert not connection.wire.closed
            await connection.settled()
            sent += await connection.feed(request[sent:], piece)
    assert connection.lengths == [size] * 4
    assert connection.wire.written.count(b"200 OK") == 4


async def test_what_was_asked_before_is_answered_first(connection: Connection) -> None:
    connection.gate.clear()
    await connection.feed(PADDED + GET + b"x-a: ")
    assert await connection.feed(b"a" * 2**20) <= LONGEST_HEAD + PIECE
    assert connection.wire.written == b""
    held = len(connection.protocol.headers)
    connection.protocol.data_received(b"a:\r\n" * 5000)  # whoever looks for its client reads on
    assert len(connection.protocol.headers) == held
    connection.gate.set()
    await connection.settled()
    assert connection.wire.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close" in connection.wire.written
    assert connection.wire.closed


async def test_nothing_is_written_into_an_answer_that_has_begun(connection: Connection) -> None:
    connection.early = True
    await connection.feed(ENDLESS["trailer"] + b"a" * 2**20)
    assert connection.wire.closed
    assert connection.wire.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert connection.wire.written.count(b"HTTP/1.1") == 1


async def test_what_is_no_http_is_refused_once(connection: Connection) -> None:
    connection.protocol.data_received(b"\x00" * 2 * LONGEST_HEAD)
    assert connection.wire.written.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert connection.wire.written.count(b"HTTP/1.1") == 1


@pytest.fixture
def _limited() -> Iterator[None]:
    limit_heads()
    yield
    # Deleted, it would leave a class that can be made of no arguments.
    HttpToolsProtocol.__new__ = _unlimited  # type: ignore[method-assign,assignment]


def _unlimited(kind: type[HttpToolsProtocol], *_args: Any, **_kwargs: Any) -> HttpToolsProtocol:
    return object.__new__(kind)


@pytest.mark.usefixtures("_limited")
async def test_servers_that_chose_the_class_before_are_limited() -> None:
    class Other(HttpToolsProtocol):
        pass

    made = [
        kind(Config(None, log_config=None), ServerState(), {})
        for kind in (HttpToolsProtocol, Other)
    ]  # type: ignore[arg-type]
    assert [type(each) for each in made] == [LimitedHeads, Other]
