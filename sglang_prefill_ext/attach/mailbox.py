"""A ZMQ socket in an event loop that sends and receives many messages at one wake-up.

`zmq.asyncio` needs a future, callbacks and a step of a task for every message. These take longer
than reading the message, and were half of a call's time in the engine's front-end process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

_AT_ONCE = 64
"""Most messages that are received before other callbacks of the event loop run."""


# A stopped process does not answer ZMTP pings, so its connections are closed. A process that is
# only busy answers them, from libzmq's own thread.
_PING_MS, _PING_TIMEOUT_MS = 1000, 4000


def socket_of(kind: zmq.SocketType, **options: int) -> zmq.Socket[bytes]:
    """Make a socket with unlimited queues, which finds out whether the other end is still alive.

    Args:
        options: further ones, by their names in `zmq.SocketOption`.
    """
    # The shared context is never terminated, because that could wait for ever.
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    socket = context.socket(kind)
    pings = {"HEARTBEAT_IVL": _PING_MS, "HEARTBEAT_TIMEOUT": _PING_TIMEOUT_MS}
    for name, value in ({"SNDHWM": 0, "RCVHWM": 0} | pings | options).items():
        socket.setsockopt(zmq.SocketOption[name], value)
    return socket


class Mailbox:
    """Sends and receives messages until closed; made in the event loop that it lives in.

    All that is sent to one receiver in one turn of the event loop becomes the parts of one message,
    because a further message, and a wake-up of its receiver, costs more than a further part.

    Args:
        socket: bound or connected by the caller; it belongs to the mailbox from now on.
        take: called with the parts of each message.
        lose: called with the address of a receiver that has gone, if the socket reports it
            (`ROUTER_MANDATORY`); messages to it are lost.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        take: Callable[[list[bytes]], None],
        lose: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self._socket = socket
        self._take = take
        self._lose = lose
        self._unsent: dict[tuple[bytes, ...], list[bytes]] = {}
        self._loop = asyncio.get_running_loop()
        self._soon: asyncio.Handle | None = None
        self._descriptor = socket.fileno()
        self._loop.add_reader(self._descriptor, self._work)
        self._go_on()

    def send(self, part: bytes, *address: bytes) -> None:
        """Send a part soon, or keep it until the socket is connected.

        Args:
            address: of the receiver, where the socket has several.
        """
        self._unsent.setdefault(address, []).append(part)
        self._work_soon()

    def close(self, linger_ms: int) -> None:
        """Close the socket, and let its last messages leave for up to `linger_ms`."""
        self._flush()
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
        for address, parts in list(self._unsent.items()):
            try:
                self._socket.send_multipart([*address, *parts], zmq.NOBLOCK)
            except zmq.Again:
                return
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self._lose(*address)
            del self._unsent[address]

    def _take_some(self) -> None:
        for _ in range(_AT_ONCE):
            # Asked first: the exception for an empty socket takes four times as long.
            if not self._is_ready(zmq.PollEvent.POLLIN):
                return
            self._take(self._socket.recv_multipart(zmq.NOBLOCK))
            if self._socket.closed:
                return

    def _go_on(self) -> None:
        """Work again soon if there is something to do; called after every use of the socket.

        ZMQ's descriptor is edge-triggered: it becomes readable once for a change, and any use of
        the socket may clear that, whatever the use was for.
        """
        if self._socket.closed:
            return
        if self._is_ready(zmq.PollEvent.POLLIN | (zmq.PollEvent.POLLOUT if self._unsent else 0)):
            self._work_soon()

    def _work_soon(self) -> None:
        if self._soon is None and not self._socket.closed:
            self._soon = self._loop.call_soon(self._work)

    def _is_ready(self, events: int) -> bool:
        return bool(int(self._socket.getsockopt(zmq.SocketOption.EVENTS)) & events)
