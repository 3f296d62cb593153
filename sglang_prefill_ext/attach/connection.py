"""A front end's end of the socket: keeps it attached to the engine whenever that is there."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from sglang_prefill_ext.attach import messages
from sglang_prefill_ext.attach.address import ENGINE_FLAG, stranger_at
from sglang_prefill_ext.attach.mailbox import Mailbox, socket_of
from sglang_prefill_ext.attach.session import Session, SessionTexts
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.process.collector import Collector, GcReport
from sglang_prefill_ext.wire.packed import PackedRows, to_bytes

logger = logging.getLogger(__name__)

_OPTIONS = {"IMMEDIATE": 1, "RECONNECT_IVL": 50, "RECONNECT_IVL_MAX": 1000}
"""No message is queued while there is no engine. The time until ZMQ connects again is 50 ms at
first, and 1000 ms at most."""
_LONGEST_WAIT_S = 60.0
"""Longest time between two hellos to an engine that refuses this front end, or that it cannot
serve. The time doubles with every failure."""

_LINGER_MS = 200
"""How long the last message to the engine may take to leave, in ms."""

_GOING_DOWN = "The engine is going down. Try again when it is back."


class EngineConnection:
    """Keeps the session of a front end with the engine that listens at the socket file.

    Args:
        metrics: counts of this process, which are handed on to the engine.
        collector: garbage collection of this process. It freezes with every new session, and acts
            when the engine asks for it.
        on_change: called with every new session, and with None when that takes no more calls.
    """

    def __init__(
        self,
        path: Path,
        metrics: FrontendMetrics,
        collector: Collector,
        on_change: Callable[[Session | None], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._metrics = metrics
        self._collector = collector
        self._on_change = on_change
        self._connected = False
        self._failures = 0
        self._hello_s = 0.0
        self._session: Session | None = None
        self._texts = SessionTexts(metrics)
        self._attached = asyncio.Event()
        self._why = f"No engine answers at {path}. Start one with {ENGINE_FLAG}, or wait for it."

    @property
    def session(self) -> Session:
        """The session with the engine, for a new call.

        Raises:
            EngineUnavailableError: there is none, or the engine shuts down.
        """
        if self._session is None or not self._attached.is_set():
            raise EngineUnavailableError(self._why)
        return self._session

    async def wait_attached(self, timeout_s: float) -> bool:
        """Wait for a session; return whether there is one, and log why not."""
        try:
            await asyncio.wait_for(self._attached.wait(), timeout_s)
        except TimeoutError:
            logger.warning("%s", self._why)
            return False
        return True

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Stay attached, in the event loop of the caller."""
        socket = socket_of(zmq.SocketType.DEALER, **_OPTIONS)
        events = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
        monitor = Mailbox(socket.get_monitor_socket(events), self._watch)
        self._mailbox = Mailbox(socket, self._receive)
        socket.connect(f"ipc://{self._path}")
        beating = asyncio.ensure_future(self._beat())
        try:
            yield
        finally:
            beating.cancel()
            if self._session is not None:
                self._tell_counts(self._session)
            self._close("This front end is going down. Try again elsewhere.")
            socket.disable_monitor()
            monitor.close(linger_ms=0)
            self._mailbox.close(_LINGER_MS)

    def _watch(self, parts: list[bytes]) -> None:
        event = parse_monitor_message(parts)["event"]
        self._connected = event == zmq.Event.HANDSHAKE_SUCCEEDED
        self._failures, self._hello_s = 0, 0.0
        if not self._connected:
            self._close("The engine has gone. Try again when it is back.")
        else:
            self._say_hello()

    def _say_hello(self) -> None:
        """Begin a session, unless another user may be listening."""
        if stranger := stranger_at(self._path):
            self._close(stranger)
        else:
            self._send(messages.Hello(pid=os.getpid()))

    def _receive(self, parts: list[bytes]) -> None:
        for part in parts:
            try:
                self._take(messages.decode_from_engine(part))
            except Exception as error:
                self._end_unread(messages.heading_of(part), error)

    def _end_unread(self, heading: messages.Heading, error: Exception) -> None:
        """End the call of an answer that cannot be read, or the session if it is no answer."""
        why = f"The engine sends what cannot be read ({error}). Install one version."
        if not isinstance(error, msgspec.DecodeError):
            logger.error("A message of the engine could not be handled", exc_info=error)
        if heading.rid and self._session is not None:
            logger.warning("%s", why)
            self._session.fail(heading.rid, why)
        else:
            self._give_up(why)

    def _take(self, message: messages.FromEngine) -> None:
        match message:
            case messages.Facts():
                if self._connected:  # else the engine has gone since
                    self._open(message)
            case messages.Refusal():
                self._give_up(message.message)
            case messages.Leaving():
                self._refuse(_GOING_DOWN)
            case messages.Farewell():
                self._close(_GOING_DOWN)
            case messages.GcCall():
                self._send(messages.GcAnswer(message.rid, self._collect_garbage(message)))
            case messages.Knock():
                pass
            case _ if self._session is not None:
                self._session.deliver(message)

    async def _beat(self) -> None:
        """Show that this front end lives; say hello again where the engine forgot it."""
        while True:
            await asyncio.sleep(messages.BEAT_S)
            if self._session is not None:
                self._tell_counts(self._session)
            elif self._connected and time.monotonic() >= self._hello_s:
                self._say_hello()

    def _tell_counts(self, session: Session) -> None:
        self._send(messages.Beat(session.in_flight, *self._metrics.take(), session.encoder))

    def _send_rows(self, rid: str, rows: PackedRows, options: RequestOptions) -> None:
        self._send(messages.Rows(rid, to_bytes(rows), options))

    def _send(self, message: messages.FromFrontend) -> None:
        self._mailbox.send(messages.encode(message))

    def _collect_garbage(self, call: messages.GcCall) -> GcReport:
        busy = self._session is not None and self._session.in_flight > 0
        return self._collector.perform(call.action, call.rid, thresholds=call.thresholds, busy=busy)

    def _open(self, facts: messages.Facts) -> None:
        if self._session is not None:
            if self._session.facts == facts:
                return  # a second hello was sent before the answer to the first one
            self._close("The engine is another one now. Try again.")
        try:
            self._session = Session(facts, self._send_rows, self._send, self._metrics, self._texts)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also a panic in Rust
            why = f"{type(error).__name__}: {error}"
            self._give_up(f"This front end cannot serve the engine of {facts.model} ({why}).")
            return
        self._failures, self._why = 0, ""
        self._collector.freeze_anew(facts.gc_thresholds)
        self._attached.set()
        logger.info("Attached to the engine of %s.", facts.model)
        self._on_change(self._session)

    def _give_up(self, why: str) -> None:
        """Close, and say hello after a wait that grows: an engine rarely changes by itself."""
        self._failures += 1
        wait_s = min(messages.BEAT_S * 2 ** min(self._failures, 30), _LONGEST_WAIT_S)
        self._hello_s = time.monotonic() + wait_s
        self._close(why)

    def _refuse(self, why: str) -> None:
        """Begin no more calls; those under way go on."""
        if why != self._why:
            logger.warning("%s", why)
        self._why = why
        if self._attached.is_set():
            self._attached.clear()
            self._on_change(None)

    def _close(self, why: str) -> None:
        self._refuse(why)
        session, self._session = self._session, None
        if session is not None:
            session.close(why)
