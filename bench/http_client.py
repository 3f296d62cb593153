"""A small HTTP/1.1 keep-alive client that takes little CPU time from the server.

It sends bytes that were prepared before. Measured with 8 connections against a server that answers
at once, it takes 33 µs of CPU time per request; httpx takes 900 µs.
"""

from __future__ import annotations

import asyncio
import time
from typing import TypeAlias, TypeVar

from sglang_prefill_ext.attach.http_connections import Answer, HttpConnection
from sglang_prefill_ext.errors import EngineUnavailableError, PrefillExtError

Piece: TypeAlias = tuple[float, bytes]
"""A received part of an answer: its time on the clock of `time.perf_counter`, and its bytes."""

_OK = b"HTTP/1.1 200 "
_LAST_CHUNK = b"\r\n0\r\n\r\n"  # JSON holds no bare line ends, so only the end looks like this
_SHOWN_BYTES = 300


class LoadError(PrefillExtError):
    """The server failed under load, so that there is nothing to measure."""


def post_bytes(path: str, body: bytes, *headers: str) -> bytes:
    """A whole ``POST`` request with a JSON body, ready to be written to a connection.

    Args:
        headers: further lines, as in ``name: value``.
    """
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    )
    return "\r\n".join((*lines, "", "")).encode() + body


class Connection(HttpConnection):
    """One keep-alive connection with at most one request under way."""

    async def send(self, request: bytes) -> bytes:
        """Send a request and return the body of its answer.

        Raises:
            LoadError: the status is not 200, the answer has no length, or the server hung up.
        """
        try:
            answer = await self.exchange(request)
        except EngineUnavailableError as error:
            raise LoadError(str(error)) from error
        if answer.status != 200:
            shown = answer.body[:_SHOWN_BYTES].decode(errors="replace")
            status_line = answer.head.partition(b"\r\n")[0].decode(errors="replace")
            raise LoadError(f"{status_line}: {shown}")
        return answer.body


class StreamConnection(Connection):
    """A connection whose answers are streamed in chunks, such as server-sent events.

    It only stores the received bytes with their times; they are parsed after the measurement.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[Piece] = []

    async def stream(self, request: bytes) -> list[Piece]:
        """Send a request and return its whole answer, head included, as it came.

        Raises:
            LoadError: the status is not 200 or the server hung up.
        """
        self._pieces = []
        await self.send(request)
        return self._pieces

    def data_received(self, data: bytes) -> None:
        self._pieces.append((time.perf_counter(), data))
        self._received += data
        if not self._received.startswith(_OK[: len(self._received)]):
            self._fail(self._received[:_SHOWN_BYTES].decode(errors="replace"))
        elif self._received.endswith(_LAST_CHUNK) and self._answer is not None:
            self._answer.set_result(Answer(bytes(self._received), b""))
            self._received.clear()


ConnectionT = TypeVar("ConnectionT", bound=Connection)


async def connect(port: int, kind: type[ConnectionT]) -> ConnectionT:
    """Open a connection to a server on this machine."""
    _, connection = await asyncio.get_running_loop().create_connection(kind, "127.0.0.1", port)
    return connection
