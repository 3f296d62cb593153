"""Makes uvicorn read heads of requests with httptools as it does with h11.

uvicorn uses httptools if that is installed. It reads faster than h11, but keeps an unfinished head
of any length, and copies it with every packet, before any API key is checked. It takes the trailers
behind a body for headers. And it loses the body of a request that offers to go on in another
protocol, as the first one of Java's HTTP client does.
"""

from __future__ import annotations

import sys
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
    read whatever its length. An offer of another protocol than WebSocket is ignored.
    """

    _unread = 0
    _data = b""  # what is being read
    _rest = b""  # what is to be read behind that

    def data_received(self, data: bytes) -> None:
        if self._unread > LONGEST_HEAD:
            return  # refused; an earlier request is still being answered
        self._unread += len(data)
        self._rest = data
        while self._rest:
            self._data, self._rest = self._rest, b""
            super().data_received(self._data)
        self._data = b""
        if self._unread > LONGEST_HEAD:
            self._refuse()

    def on_headers_complete(self) -> None:
        self._unread = 0
        if self._ignores_upgrade:
            return  # the head is read again
        super().on_headers_complete()
        # Trailers are added to this list. They are no headers: what stands before this server may
        # have looked at those alone.
        self.headers = self.headers.copy()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._ignores_upgrade:
            super().on_message_complete()

    @property
    def _ignores_upgrade(self) -> bool:
        upgrades = self.parser.should_upgrade() and self._get_upgrade() is not None
        return upgrades and not self._should_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """Have the head read again without the offer, behind which httptools reads no body."""
        stopped = sys.exception()
        if stopped is None or self._get_upgrade() is None:  # CONNECT
            return super()._unsupported_upgrade_warning()
        kept = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        version = self.parser.get_http_version().encode()
        first = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)
        head = b"\r\n".join([first, *kept, b"", b""])
        self._rest = head + self._data[stopped.args[0] :]

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
