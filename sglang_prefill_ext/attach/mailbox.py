"""A ZMQ socket in an event loop, which takes whatever has come at one wake-up.

With `zmq.asyncio` every message has a future, callbacks and a task's step of its own, which take
longer than reading it and were half of what a call took of the engine's front-end process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import zmq

_AT_ONCE = 64
"""Messages that are taken before the event loop has its turn."""


class Mailbox:
    """Sends and takes messages until closed; made in the event loop that it lives in.

    Args:
        socket: bound or connected by the caller; it belongs to the mailbox from now on.
        take: called with the parts of each message.
    """

    def __init__(self, socket: zmq.Socket[bytes], take: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._take = take
        self._unsent: deque[tuple[bytes, ...]] = deque()
        self._loop = asyncio.get_running_loop()
        self._soon: asyncio.Handle | None = None
        self._descriptor = socket.fileno()
        self._loop.add_reader(self._descriptor, self._work)
        self._go_on()

    def send(self, *parts: bytes) -> None:
        """Send a message, or keep it until the socket has somebody to send it to."""
        self._unsent.append(parts)
        self._flush()
        self._go_on()

    def close(self, linger_ms: int) -> None:
        """Close the socket, whose last messages may take that long to leave, in ms."""
        self._loop.remove_reader(self._descriptor)
        if self._soon is not None:
            self._soon.cancel()
        self._socket.close(linger_ms)

    def _work(self) -> None:
        self._soon = None
        try:
            self._flush()
            self._take_some()
        finally:
            self._go_on()

    def _flush(self) -> None:
        while self._unsent:
            try:
                self._socket.send_multipart(self._unsent[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._unsent.popleft()

    def _take_some(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(parts)
            if self._socket.closed:
                return

    def _go_on(self) -> None:
        """Work again soon if there is something to do.

        ZMQ's descriptor tells only once that something has changed, and any use of the socket,
        also one that had another purpose, is that once: so this comes behind every use.
        """
        if self._soon is not None or self._socket.closed:
            return
        wanted = zmq.PollEvent.POLLIN | (zmq.PollEvent.POLLOUT if self._unsent else 0)
        if int(self._socket.getsockopt(zmq.SocketOption.EVENTS)) & wanted:
            self._soon = self._loop.call_soon(self._work)
