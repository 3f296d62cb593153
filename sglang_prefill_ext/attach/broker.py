"""The engine's end: serves the calls of attached front ends like those of its own process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from sglang_prefill_ext import __version__
from sglang_prefill_ext.attach import messages
from sglang_prefill_ext.attach.address import listening
from sglang_prefill_ext.attach.engine import Engine, result_of
from sglang_prefill_ext.attach.mailbox import Mailbox, socket_of
from sglang_prefill_ext.attach.messages import (
    Abort,
    Answer,
    Beat,
    Call,
    Farewell,
    FromEngine,
    FromFrontend,
    GcAnswer,
    GcCall,
    Heading,
    Hello,
    Knock,
    Refusal,
    Rows,
    RowsAnswer,
    Stock,
    StockAnswer,
    StockError,
)
from sglang_prefill_ext.frontend.ask_processes import Questions
from sglang_prefill_ext.process.collector import GcAction, GcReport

logger = logging.getLogger(__name__)

_LINGER_MS = 200
"""What the last messages to front ends may take, in ms."""


@dataclass
class _Peer:
    """A front end that said hello."""

    pid: int
    heard_s: float
    in_flight: int = 0
    encoder: str = ""
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)


class Broker:
    """Serves front ends at a socket file while `running`."""

    def __init__(self, engine: Engine, path: Path, *, flag: str) -> None:
        self._engine = engine
        self._path = path
        self._flag = flag
        self._peers: dict[bytes, _Peer] = {}
        self._gc_calls: Questions[list[GcReport]] = Questions()

    def peers(self) -> list[dict[str, Any]]:
        """The attached front ends, for the status page."""
        return [
            {"pid": peer.pid, "in_flight": peer.in_flight, "encoder": peer.encoder}
            for peer in self._peers.values()
        ]

    async def collect_garbage(
        self, action: GcAction, thresholds: list[int] | None, timeout_s: float
    ) -> list[list[GcReport]]:
        """Have every front end act on its garbage collection; the silent are left out."""

        def call(rid: str) -> None:
            for name in self._peers:
                self._send(name, GcCall(rid, action, thresholds))

        return await self._gc_calls.ask(call, len(self._peers), timeout_s)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve, in the event loop of the caller.

        Raises:
            ConfigError: see `address.claim`.
        """
        with listening(self._path, flag=self._flag) as descriptor:
            socket = _router(descriptor)
            socket.bind(f"ipc://{self._path}")
            self._mailbox = Mailbox(socket, self._receive, self._forget)
            knocking = asyncio.ensure_future(self._knock_at_silent())
            try:
                yield
            finally:
                knocking.cancel()
                for name in list(self._peers):
                    self._send(name, Farewell())
                    self._forget(name)
                self._mailbox.close(_LINGER_MS)

    def _receive(self, parts: list[bytes]) -> None:
        name, *bodies = parts
        for body in bodies:
            try:
                self._take(name, messages.decode_from_frontend(body))
            except Exception as error:
                self._end_unread(name, messages.heading_of(body), error)

    def _end_unread(self, name: bytes, heading: Heading, error: Exception) -> None:
        """End the call of a message that cannot be read or served, and no other."""
        unread = isinstance(error, msgspec.DecodeError)
        what = heading.type if heading.is_known else "message"
        logger.warning(
            "A %s of a front end cannot be served: %s",
            *(what, error),
            exc_info=None if unread else error,
        )
        if heading.is_call:
            why = f"The engine cannot serve this call ({type(error).__name__}: {error})."
            self._send(name, messages.failure_of(heading, why))
        elif not heading.is_known:
            self._send(name, Refusal("The engine cannot read what this front end sends."))

    def _take(self, name: bytes, message: FromFrontend) -> None:
        if isinstance(message, Hello):
            self._welcome(name, message)
        elif (peer := self._peers.get(name)) is None:
            # Forgotten after a long silence, or never welcome: it has to say hello.
            self._send(name, Farewell())
        else:
            peer.heard_s = time.monotonic()
            self._take_of(peer, name, message)

    def _take_of(self, peer: _Peer, name: bytes, message: Call | Abort | Beat | GcAnswer) -> None:
        match message:
            case GcAnswer():
                self._gc_calls.deliver(message.rid, [message.report])
            case Beat():
                peer.in_flight, peer.encoder = message.in_flight, message.encoder
                self._engine.count(message)
            case Abort():
                if (task := peer.tasks.get(message.rid)) is not None:
                    task.cancel()
            case _ if message.rid in peer.tasks:
                # Both calls end with the answer to the first one, as they have one name.
                logger.error("A front end named two calls %r", message.rid)
            case Rows():
                self._start(peer, message.rid, self._serve_rows(name, message))
            case _:
                self._start(peer, message.rid, self._serve_stock(name, message))

    def _start(self, peer: _Peer, rid: str, work: Coroutine[Any, Any, None]) -> None:
        task = peer.tasks[rid] = asyncio.create_task(work)
        task.add_done_callback(lambda _: peer.tasks.pop(rid, None))

    def _welcome(self, name: bytes, hello: Hello) -> None:
        if (hello.protocol, hello.version) != (messages.PROTOCOL, __version__):
            message = (
                f"This front end is version {hello.version!r:.40} (protocol {hello.protocol}), the "
                f"engine is version {__version__} (protocol {messages.PROTOCOL}). Install the same."
            )
            logger.warning("Front end %d was refused: %s", hello.pid, message)
            self._send(name, Refusal(message))
            return
        if name in self._peers:
            self._forget(name)
        self._peers[name] = _Peer(hello.pid, time.monotonic())
        self._send(name, self._engine.facts())

    async def _serve_rows(self, name: bytes, message: Rows) -> None:
        result = await result_of(self._engine, message.row_bytes, message.options)
        self._answer(name, message, RowsAnswer(message.rid, result))

    async def _serve_stock(self, name: bytes, call: Stock) -> None:
        answer: StockAnswer | StockError
        try:
            answer = await self._engine.serve_stock(call)
        except Exception as error:
            logger.exception("A call of a front end failed")
            answer = StockError(call.rid, 500, f"{type(error).__name__}: {error}")
        self._answer(name, call, answer)

    def _answer(self, name: bytes, call: Call, answer: Answer) -> None:
        """Send an answer; one that cannot be sent ends its call all the same."""
        try:
            self._mailbox.send(messages.encode(answer), name)
        except Exception as error:
            logger.exception("An answer to a front end cannot be sent")
            why = f"The engine's answer cannot be sent ({type(error).__name__}: {error})."
            self._send(name, messages.failure_of(Heading(type(call).__name__, call.rid), why))

    def _send(self, name: bytes, message: FromEngine) -> None:
        self._mailbox.send(messages.encode(message), name)

    async def _knock_at_silent(self) -> None:
        """Have the socket forget those that are not there any more (see `Knock`)."""
        while True:
            await asyncio.sleep(messages.BEAT_S)
            oldest_s = time.monotonic() - messages.SILENCE_S
            for name in [n for n, peer in self._peers.items() if peer.heard_s < oldest_s]:
                self._send(name, Knock())

    def _forget(self, name: bytes) -> None:
        """End whatever a front end has under way; nobody waits for it."""
        if (peer := self._peers.pop(name, None)) is not None:
            for task in list(peer.tasks.values()):
                task.cancel()


def _router(descriptor: int) -> zmq.Socket[bytes]:
    socket = socket_of(zmq.SocketType.ROUTER)
    socket.setsockopt(zmq.SocketOption.USE_FD, descriptor)
    socket.setsockopt(zmq.SocketOption.ROUTER_MANDATORY, 1)  # it says who has gone
    return socket
