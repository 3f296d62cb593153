"""Keep-alive connections over HTTP/1.1 to one engine, for requests whose latency counts.

They read the one form of answer that engines give: a body whose length the head tells. On a core
that has done other work since, a request takes 0.1 ms, and with aiohttp 0.4 ms.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.process.ports import KEEPALIVE, LONGEST_IDLE_S

_BEGIN = re.compile(rb"HTTP/1\.1 \d{3}[ \r]")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,18}) *\r", re.IGNORECASE)
_CLOSING = re.compile(rb"\r\nconnection: *close *\r", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_LONGEST_HEAD = 64 * 1024

CONNECT_S = 2.0

_UNKNOWN_AUTHORITY = range(18, 22)
"""OpenSSL's codes for a certificate that is signed by itself, or whose signer is not known."""


class Answer(NamedTuple):
    """The answer to a request; `head` has the status line and headers."""

    head: bytes
    body: bytes

    @property
    def status(self) -> int:
        return int(self.head[9:12])


class HttpConnection(asyncio.Protocol):
    """A connection with at most one request under way."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._body_at = 0
        self._end: int | None = None  # of the answer in `_received`, once its head is complete
        self._answer: asyncio.Future[Answer] | None = None
        self._transport: asyncio.Transport  # once it is made

    @property
    def is_open(self) -> bool:
        """Whether it can take a request."""
        return not self._transport.is_closing()

    async def exchange(self, request: bytes) -> Answer:
        """Send a whole request, and return its answer.

        Raises:
            EngineUnavailableError: there is no answer, or none that can be read.
        """
        assert self._answer is None, "one request at a time"
        if not self.is_open:
            raise EngineUnavailableError(_closed(None))
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            self._answer = None

    def close(self) -> None:
        """Close it at once; the other end drops a request that is under way."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(_closed(exc))

    def data_received(self, data: bytes) -> None:
        if (waiting := self._waiting) is None:
            self.close()  # nobody asked for this, and the next request must not get it
            return
        self._received += data
        if self._end is None:
            self._read_head()
        if self._end is not None and len(self._received) >= self._end:
            with memoryview(self._received) as view:  # a body of many MB is copied only once
                answer = Answer(
                    bytes(view[: self._body_at]), bytes(view[self._body_at : self._end])
                )
            del self._received[: self._end]
            self._end = None
            if self._received or _CLOSING.search(answer.head):
                self.close()
            waiting.set_result(answer)

    def _read_head(self) -> None:
        head_end = self._received.find(_HEAD_END)
        if head_end < 0:
            if len(self._received) >= _LONGEST_HEAD:
                self._fail("the head of an answer does not end")
            return
        length = _LENGTH.search(self._received, 0, head_end + 1)
        if not _BEGIN.match(self._received) or length is None:
            self._fail("an answer is none of HTTP/1.1 with a content-length")
            return
        self._body_at = head_end + len(_HEAD_END)
        self._end = self._body_at + int(length[1])

    def _fail(self, why: str) -> None:
        if (waiting := self._waiting) is not None:
            waiting.set_exception(EngineUnavailableError(why))
        self.close()

    @property
    def _waiting(self) -> asyncio.Future[Answer] | None:
        """What waits for an answer, if the caller still does."""
        return None if self._answer is None or self._answer.done() else self._answer


class HttpConnections:
    """Connections to one engine; a request gets one that is idle, or a new one.

    Args:
        url: of http or https, without a path.
        headers: of every request.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self._tls = _tls() if parts.scheme == "https" else None
        self._address = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._headers = _lines({"host": parts.netloc, **headers})
        self._idle: deque[tuple[float, HttpConnection]] = deque()

    async def get(self, target: str, limit_s: float) -> Answer:
        """See `post`; an answer that takes longer than `limit_s` is an error, too."""
        request = f"GET {target} HTTP/1.1\r\n{self._headers}\r\n".encode()
        try:
            async with asyncio.timeout(limit_s):
                return await self._exchange(request)
        except TimeoutError as error:
            raise EngineUnavailableError(f"no answer within {limit_s:g} s") from error

    async def post(self, target: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request; if the caller is cancelled, its connection is closed.

        Args:
            target: path and query, encoded.

        Raises:
            EngineUnavailableError: there is no answer.
        """
        own = _lines({**headers, "content-length": str(len(body))})
        head = f"POST {target} HTTP/1.1\r\n{self._headers}{own}\r\n"
        return await self._exchange(head.encode() + body)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop()[1].close()

    async def _exchange(self, request: bytes) -> Answer:
        connection = self._kept() or await self._opened()
        try:
            answer = await connection.exchange(request)
        except BaseException:
            connection.close()
            raise
        self._idle.append((time.monotonic(), connection))
        return answer

    def _kept(self) -> HttpConnection | None:
        """The connection that was used last, if it can still be used."""
        oldest_s = time.monotonic() - LONGEST_IDLE_S
        while self._idle and self._idle[0][0] < oldest_s:
            self._idle.popleft()[1].close()
        while self._idle:
            connection = self._idle.pop()[1]
            if connection.is_open:
                return connection
        return None

    async def _opened(self) -> HttpConnection:
        loop, (host, port) = asyncio.get_running_loop(), self._address
        try:
            async with asyncio.timeout(CONNECT_S):
                opening = loop.create_connection(HttpConnection, host, port, ssl=self._tls)
                transport, connection = await opening
                for option in KEEPALIVE:
                    transport.get_extra_info("socket").setsockopt(*option)
                return connection
        except (OSError, UnicodeError) as error:  # also TimeoutError, and those of TLS
            raise EngineUnavailableError(_unopened(error)) from error


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()  # takes 50 ms, as it reads all certificates


def _lines(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def _unopened(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"its certificate is not accepted: {error.verify_message.rstrip('.')}"
        if error.verify_code in _UNKNOWN_AUTHORITY:
            why += "; name the PEM file of its authority in SSL_CERT_FILE"
        return why
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "it does not use TLS; its URL may be one of http"
    return str(error) or f"no connection within {CONNECT_S:g} s"


def _closed(error: Exception | None) -> str:
    return f"the other end closed the connection ({error or 'without an error'})"
