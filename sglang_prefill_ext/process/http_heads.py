"""Limits the size of the heads of requests that uvicorn reads with httptools.

uvicorn uses httptools if that is installed. It reads faster than h11, but keeps an unfinished head
of any length, and copies it with every packet, before any API key is checked. And it takes the
trailers behind a body for headers.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LONGEST_HEAD = 16 * 1024
"""Most bytes of an unfinished head; the same limit as h11's."""

_REFUSAL = b"The head of the request is too long."
_ANSWER = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s"
) % (len(_REFUSAL), _REFUSAL)


class LimitedHeads(HttpToolsProtocol):
    """uvicorn's protocol, which also closes a connection whose head gets too long: HTTP 431.

    It counts the bytes since a head was complete or a part of a body was read, so trailers are
    limited as well; as with h11, nobody sees them. A head that arrives complete in one piece is
    read whatever its length.
    """

    _unread = 0

    def data_received(self, data: bytes) -> None:
        if self._unread > LONGEST_HEAD:
            return  # refused; an earlier request is still being answered
        self._unread += len(data)
        super().data_received(data)
        if self._unread > LONGEST_HEAD:
            self._refuse()

    def on_headers_complete(self) -> None:
        self._unread = 0
        super().on_headers_complete()
        # Trailers are added to this list. They are no headers: what stands before this server may
        # have looked at those alone.
        self.headers = self.headers.copy()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def _refuse(self) -> None:
        cycle = self.cycle
        if self.transport.is_closing():
            return
        waits = cycle is not None and not cycle.response_complete
        if waits and not cycle.more_body:
            cycle.keep_alive = False  # closes the connection after its answer
            self.flow.pause_reading()
            return
        if not (waits and cycle.response_started):
            self.transport.write(_ANSWER)
        self.transport.close()


def limit_heads() -> None:
    """Limit the heads of every connection to come.

    This changes the class that uvicorn makes protocols of, because a server has chosen that class
    before its application starts; in worker processes of SGLang even before any code of ours runs.
    """

    def limited(kind: type[HttpToolsProtocol], *_args: Any, **_kwargs: Any) -> HttpToolsProtocol:
        return object.__new__(LimitedHeads if kind is HttpToolsProtocol else kind)

    HttpToolsProtocol.__new__ = limited  # type: ignore[method-assign,assignment]
