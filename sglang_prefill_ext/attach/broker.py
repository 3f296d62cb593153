"""The engine's end of the socket: serves calls of attached front ends like those of its process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
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
from sglang_prefill_ext.frontend.ask_processes import Questions
from sglang_prefill_ext.process.collector import GcAction, GcReport

logger = logging.getLogger(__name__)

_LINGER_MS = 200
"""How long the last messages to front ends may take to leave, in ms."""


@dataclass
class _Peer:
    pid: int
    in_flight: int = 0
    encoder: str = ""
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)


class Broker:
    """Serves front ends at a socket file while `running`."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._path = path
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
        """Have every front end act on its garbage collection; return the reports that come in
        time."""

        def call(rid: str) -> None:
            for name in self._peers:
                self._send(name, messages.GcCall(rid, action, thresholds))

        return await self._gc_calls.ask(call, len(self._peers), timeout_s)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve, in the event loop of the caller.

        Raises:
            ConfigError: see `address.claim`.
        """
        with listening(self._path) as descriptor:
            # With ROUTER_MANDATORY, sending to a front end that has gone raises an error.
            options = {"USE_FD": descriptor, "ROUTER_MANDATORY": 1}
            socket = socket_of(zmq.SocketType.ROUTER, **options)
            socket.bind(f"ipc://{self._path}")
            self._mailbox = Mailbox(socket, self._receive, self._forget)
            telling = asyncio.ensure_future(self._tell())
            try:
                yield
            finally:
                telling.cancel()
                for name in list(self._peers):
                    self._send(name, messages.Farewell())
                    self._forget(name)
                self._mailbox.close(_LINGER_MS)

    def _receive(self, parts: list[bytes]) -> None:
        name, *bodies = parts
        for body in bodies:
            try:
                self._take(name, messages.decode_from_frontend(body))
            except Exception as error:
                self._end_unserved(name, messages.heading_of(body), error)

    def _end_unserved(self, name: bytes, heading: messages.Heading, error: Exception) -> None:
        """End the call of a message that cannot be read or served; other calls go on."""
        what = heading.type if heading.is_known else "message"
        told = f"{type(error).__name__}: {error!s:.200}"  # the error may repeat the message
        told = told.encode(errors="replace").decode()
        trace = None if isinstance(error, msgspec.DecodeError) else error
        logger.warning("A %s of a front end cannot be served (%s)", what, told, exc_info=trace)
        if heading.is_call:
            failure = messages.failure_of(heading, f"The engine cannot serve this call ({told}).")
            self._send(name, failure)
        elif not heading.is_known:
            self._send(name, messages.Refusal(f"The engine cannot serve this front end ({told})."))

    def _take(self, name: bytes, message: messages.FromFrontend) -> None:
        if isinstance(message, messages.Hello):
            self._welcome(name, message)
        elif (peer := self._peers.get(name)) is None:
            # Forgotten after a long silence, or never welcomed: it has to say hello first.
            self._send(name, messages.Farewell())
        else:
            self._take_of(peer, name, message)

    def _take_of(self, peer: _Peer, name: bytes, message: messages.Call | messages.Tidings) -> None:
        match message:
            case messages.GcAnswer():
                self._gc_calls.deliver(message.rid, [message.report])
            case messages.Beat():
                peer.in_flight, peer.encoder = message.in_flight, message.encoder
                self._engine.count(message)
            case messages.Abort():
                if (aborted := peer.tasks.get(message.rid)) is not None:
                    aborted.cancel()
            case _ if message.rid in peer.tasks:
                # Only the first call is served; its answer ends both, as they have the same name.
                logger.error("A front end gave two calls the same id %r", message.rid)
            case _:
                task = peer.tasks[message.rid] = asyncio.create_task(self._serve(name, message))
                task.add_done_callback(lambda _: peer.tasks.pop(message.rid, None))

    def _welcome(self, name: bytes, hello: messages.Hello) -> None:
        if (hello.protocol, hello.version) != (messages.PROTOCOL, __version__):
            message = (
                f"This front end is version {hello.version!r:.40} (protocol {hello.protocol}), the "
                f"engine is version {__version__} (protocol {messages.PROTOCOL}). Install the same."
            )
            logger.warning("Front end %d was refused: %s", hello.pid, message)
            self._send(name, messages.Refusal(message))
            return
        self._forget(name)
        self._send(name, self._engine.facts())
        self._peers[name] = _Peer(hello.pid)
        if self._engine.leaving:
            self._send(name, messages.Leaving())

    async def _serve(self, name: bytes, call: messages.Call) -> None:
        """Serve a call; whatever goes wrong, it is answered."""
        answer: messages.Answer
        try:
            if isinstance(call, messages.Rows):
                result = await result_of(self._engine, call.row_bytes, call.options)
                answer = messages.RowsAnswer(call.rid, result)
            else:
                answer = await self._engine.serve_stock(call)
            self._send(name, answer)
        except Exception as error:
            self._end_unserved(name, messages.Heading(type(call).__name__, call.rid), error)

    def _send(self, name: bytes, message: messages.FromEngine) -> None:
        self._mailbox.send(messages.encode(message), name)

    async def _tell(self) -> None:
        """Tell all front ends that the engine leaves, or knock to find those that have gone."""
        while True:
            await asyncio.sleep(messages.BEAT_S)
            message = messages.Leaving() if self._engine.leaving else messages.Knock()
            for name in self._peers:
                self._send(name, message)

    def _forget(self, name: bytes) -> None:
        """Forget a front end, and end its calls, whose answers nobody waits for."""
        if (peer := self._peers.pop(name, None)) is not None:
            for task in list(peer.tasks.values()):
                task.cancel()
