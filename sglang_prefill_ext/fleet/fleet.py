"""The engines of a router: it watches them, and has one session with all that fit together."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

from sglang_prefill_ext.attach.carrier import Offer
from sglang_prefill_ext.attach.session import Session, SessionTexts
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet.calls import Calls
from sglang_prefill_ext.fleet.dispatch import Dispatcher
from sglang_prefill_ext.fleet.loads import NO_ENGINE, Loads
from sglang_prefill_ext.fleet.proxy import http_session
from sglang_prefill_ext.fleet.replica import BEAT_S, Replica
from sglang_prefill_ext.fleet.selection import Selection
from sglang_prefill_ext.fleet.settings import Engines
from sglang_prefill_ext.fleet.whole import WholeRequests
from sglang_prefill_ext.metrics import FrontendMetrics

logger = logging.getLogger(__name__)

_LEAVING_S = 0.2
"""How often it is checked whether an engine that leaves has ended its work."""

_OTHERS_S = 3.0
"""How long a new router that can use one engine waits for the others."""


class Fleet:
    """Engines that answer alike, behind one `Session`; `set_engines` says which there are.

    Args:
        on_session: called with every new session; with None if it cannot be made.

    Attributes:
        replicas: by URL; one that leaves stays among them while it has work from this router.
        deployment: see `Engines`.
        http: for whole requests; only while `running`.
    """

    def __init__(
        self,
        metrics: FrontendMetrics,
        *,
        api_key: str = "",
        extra_work: float | None = None,
        on_session: Callable[[Session | None], None] = lambda _: None,
    ) -> None:
        self._metrics = metrics
        self._api_key = api_key
        self._on_session = on_session
        self.replicas: dict[str, Replica] = {}
        self.deployment: dict[str, int] = {}
        self.loads = Loads(preference=random.getrandbits(32) | 1)
        self.dispatcher = Dispatcher(self.replicas, self.loads, extra_work)
        self._selection = Selection(self.replicas, self.loads, self._begin_session)
        self._session: Session | None = None
        self._texts = SessionTexts(metrics)
        self._why = NO_ENGINE
        self.whole = WholeRequests(self.replicas, self.loads, self.dispatcher.attempts.counts)
        self._calls: Calls
        self.http: aiohttp.ClientSession
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._usable, self._heard = asyncio.Event(), asyncio.Event()

    @property
    def offer(self) -> Offer | None:
        """The offer of the session's engines; None before the first engine has answered."""
        return self._selection.offer

    @property
    def session(self) -> Session:
        """The session of the front ends of this process with the engines.

        Raises:
            EngineUnavailableError: no engine has answered yet, or there can be none.
        """
        if self._session is None:
            raise EngineUnavailableError(self._why)
        return self._session

    @property
    def in_flight(self) -> int:
        """Calls of front ends of this process that are under way."""
        return 0 if self._session is None else self._session.in_flight

    def tokenizer_status(self) -> dict[str, Any]:
        """Status of what encodes texts here; empty if the engines do."""
        texts = None if self._session is None else self._session.texts
        return {} if texts is None else texts.status()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch the engines, in the event loop of the caller."""
        async with http_session() as self.http:
            try:
                yield
            finally:
                for task in [*self._watching.values(), *self._leaving.values()]:
                    task.cancel()
                self._end_session("This router is going down. Try again elsewhere.")
                for replica in self.replicas.values():
                    replica.connections.close()

    def set_engines(self, engines: Engines) -> None:
        """Have exactly these engines; only while `running`.

        An engine that leaves gets no more work, and is forgotten once it has answered all of its
        requests.
        """
        self.deployment, urls = engines.deployment, engines.urls
        for url in [url for url in self._watching if url not in urls]:
            logger.info("Engine %s leaves the fleet.", url)
            self._watching.pop(url).cancel()
            self._leaving[url] = asyncio.ensure_future(self._see_off(self.replicas[url]))
            self._selection.drain(url)
        for url in [url for url in urls if url not in self._watching]:
            if url in self._leaving:
                self._leaving[url].cancel()
                self._forget(url)
            replica = self.replicas[url] = Replica(url, self._api_key)
            self._watching[url] = asyncio.ensure_future(self._watch(replica))
        self._selection.choose()
        self._note_heard()

    async def _watch(self, replica: Replica) -> None:
        """Ask an engine for its state, every `BEAT_S`, until cancelled."""
        while True:
            try:
                await self._ask_state(replica)
            except Exception:
                logger.exception("The state of engine %s cannot be processed", replica.url)
            replica.heard = True
            self._note_heard()
            await asyncio.sleep(BEAT_S)

    async def _ask_state(self, replica: Replica) -> None:
        try:
            state = await replica.state()
        except EngineUnavailableError as error:
            self._selection.take_silence(replica, error)
        else:
            self._selection.take_state(replica, state)

    async def _see_off(self, leaving: Replica) -> None:
        url = leaving.url
        while True:
            await asyncio.sleep(_LEAVING_S)
            if not leaving.whole and not (url in self.loads and self.loads[url].parts):
                self._forget(url)
                return

    def _forget(self, url: str) -> None:
        self.loads.pop(url, None)
        self.replicas.pop(url).connections.close()
        del self._leaving[url]

    async def wait_heard(self, timeout_s: float) -> None:
        """Wait until engines were set, and each has answered or failed to.

        Once one can be used, the others get only `_OTHERS_S` more, because one may hang.
        """
        for event, longest_s in ((self._usable, timeout_s), (self._heard, _OTHERS_S)):
            with suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), longest_s)
        self._selection.settled = True
        if not self.whole.available():
            logger.warning("No engine of the fleet can be used yet; requests get HTTP 503.")

    def _begin_session(self, offer: Offer) -> None:
        self._end_session("The fleet serves another model now. Try again.")
        calls = self._calls = Calls(self.dispatcher, self.whole)
        self._session = None
        try:
            self._session = Session(
                *(offer.facts, calls.take_rows, calls.take, self._metrics, self._texts),
                one_engine=False,
            )
            calls.session = self._session
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also a panic in Rust
            why = f"{type(error).__name__}: {error}"
            self._why = f"This router cannot serve the engines of {offer.facts.model} ({why})."
            logger.error("%s Requests go whole to one engine.", self._why)
        self._on_session(self._session)

    def _end_session(self, why: str) -> None:
        if self._session is not None:
            self._calls.cancel()
            self._session.close(why)

    def _note_heard(self) -> None:
        if all(each.heard for each in self.replicas.values()):
            self._usable.set()
            self._heard.set()
        elif self.whole.available():
            self._usable.set()
