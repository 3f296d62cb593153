"""The engine's end: serves the calls of attached front ends like those of its own process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec
import zmq

from sglang_prefill_ext import __version__
from sglang_prefill_ext.attach import messages
from sglang_prefill_ext.attach.address import claim, owner_only
from sglang_prefill_ext.attach.mailbox import Mailbox
from sglang_prefill_ext.attach.messages import (
    Abort,
    Beat,
    Call,
    Facts,
    Farewell,
    FromEngine,
    FromFrontend,
    GcAnswer,
    GcCall,
    Hello,
    Refusal,
    Rows,
    RowsAnswer,
    Stock,
    StockAnswer,
    StockError,
)
from sglang_prefill_ext.errors import DeadlineExceededError, PackingError, RequestError
from sglang_prefill_ext.frontend.exchange import UNKNOWN_ADAPTER
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.roll_call import RollCall
from sglang_prefill_ext.runtime.collector import GcAction, GcReport
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.result import PackedResult

logger = logging.getLogger(__name__)

_LINGER_MS = 200
"""What the last messages to front ends may take, in ms."""


class Engine(Protocol):
    """What the broker needs of the process it lives in."""

    def facts(self) -> Facts: ...

    def adapter(self, name: str) -> AbstractAsyncContextManager[str]:
        """The id of a LoRA adapter that is not unloaded inside; empty for none.

        Raises:
            RequestError: there is no adapter of that name.
        """
        ...

    async def serve_stock(self, call: Stock) -> StockAnswer | StockError:
        """Serve a call as if it had come by HTTP; never raises for what a caller can cause."""
        ...

    async def serve_rows(self, rows: PackedRows, options: RequestOptions) -> PackedResult:
        """Admit and serve rows like those of this process.

        Raises:
            DeadlineExceededError: the deadline passed before they were admitted.
        """
        ...

    def count(self, beat: Beat) -> None: ...


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
        self._gc_calls: RollCall[list[GcReport]] = RollCall()

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
        claim(self._path, flag=self._flag)
        # The context of the process is never ended, which could wait for ever.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        socket = context.socket(zmq.SocketType.ROUTER)
        socket.setsockopt(zmq.SocketOption.SNDHWM, 0)
        socket.setsockopt(zmq.SocketOption.RCVHWM, 0)
        with owner_only():
            socket.bind(f"ipc://{self._path}")
        self._mailbox = Mailbox(socket, self._receive)
        forgetting = asyncio.ensure_future(self._forget_silent())
        try:
            yield
        finally:
            forgetting.cancel()
            for name in list(self._peers):
                self._send(name, Farewell())
                self._forget(name)
            self._mailbox.close(_LINGER_MS)
            self._path.unlink(missing_ok=True)

    def _receive(self, parts: list[bytes]) -> None:
        name, *bodies = parts
        for body in bodies:
            try:
                self._take(name, messages.decode_from_frontend(body))
            except msgspec.DecodeError as error:
                logger.warning("A front end sent what cannot be read: %s", error)
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
                f"This front end is version {hello.version} (protocol {hello.protocol}), the "
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
        try:
            rows = message.row_bytes.rows()
            async with self._engine.adapter(rows.adapter) as adapter:
                if adapter:
                    rows = replace(rows, adapter=adapter)
                result = await self._engine.serve_rows(rows, message.options)
        except RequestError as error:
            result = PackedResult(UNKNOWN_ADAPTER, str(error))
        except DeadlineExceededError as error:
            result = PackedResult("expired", str(error))
        except PackingError as error:
            result = PackedResult("failed", str(error))
        except Exception as error:
            logger.exception("A packed request of a front end failed")
            result = PackedResult("failed", f"{type(error).__name__}: {error}")
        self._send(name, RowsAnswer(message.rid, result))

    async def _serve_stock(self, name: bytes, call: Stock) -> None:
        self._send(name, await self._engine.serve_stock(call))

    def _send(self, name: bytes, message: FromEngine) -> None:
        self._mailbox.send(messages.encode(message), name)

    async def _forget_silent(self) -> None:
        while True:
            await asyncio.sleep(messages.BEAT_S)
            oldest_s = time.monotonic() - messages.SILENCE_S
            for name in [n for n, peer in self._peers.items() if peer.heard_s < oldest_s]:
                self._forget(name)

    def _forget(self, name: bytes) -> None:
        """End whatever a front end has under way; nobody waits for it."""
        for task in list(self._peers.pop(name).tasks.values()):
            task.cancel()
