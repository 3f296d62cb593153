"""The actor of the routers of one node: runs their processes, and tells them of the engines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import time

import msgspec
import ray
from ray import serve

from sglang_prefill_ext.attach.http_connections import HttpConnections
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet.health import UNKNOWN
from sglang_prefill_ext.fleet.ray_serve.launch import ENGINES
from sglang_prefill_ext.fleet.replica import BEAT_S
from sglang_prefill_ext.fleet.settings import Engines, Settings, router_command
from sglang_prefill_ext.frontend.options import authorization
from sglang_prefill_ext.process.supervisor import Supervisor

logger = logging.getLogger("ray.serve")

_SILENT_S = 10.0
"""An engine that reports nothing for so long is forgotten: it has died without leaving."""

_LISTENING_S = 60.0
_LOOK_S = 0.2
_ANSWER_S = 10.0
_MOST_STRANGERS = 64
"""How often an own process is asked for, while those of another replica may answer as well."""


class _Shown(msgspec.Struct):
    url: str
    health: str


class _Page(msgspec.Struct):
    """What is read here of a router's status page."""

    pid: int
    replicas: list[_Shown]


_read = msgspec.json.Decoder(_Page).decode


class RouterReplica:
    """A replica of the deployment of routers.

    Args:
        processes: number of router processes, which share the port.

    Raises:
        EngineUnavailableError: no router listens in time.
    """

    async def __init__(self, settings: Settings, processes: int, api_key: str) -> None:  # type: ignore[misc]
        self._directory = tempfile.TemporaryDirectory(prefix="prefill-fleet-")
        command, env = router_command(settings, api_key, self._directory.name)
        self._supervisor = Supervisor(command, processes, grace_s=settings.grace_s, env=env)
        self._heard_s: dict[str, float] = {}
        self._left_s: dict[str, float] = {}
        self._deployment: dict[str, int] = {}
        self._said: Engines | None = None
        self._settings = settings
        self._url = settings.url_at("localhost")
        self._auth = authorization(api_key)
        self._stop = asyncio.Event()
        await self._take_over()
        self._say()
        self._running = asyncio.ensure_future(self._supervisor.run(self._stop))
        self._watching = asyncio.ensure_future(self._watch())
        await self._listening()

    async def join(self, url: str) -> None:
        """Take note that an engine is there; the engine calls this every second."""
        if url not in self._left_s:  # else sent before it left
            self._heard_s[url] = time.monotonic()
            self._say()

    async def leave(self, url: str) -> None:
        """Give an engine no more requests; the engine calls this when it ends."""
        self._heard_s.pop(url, None)
        self._left_s[url] = time.monotonic()
        self._say()

    async def has_heard(self, url: str) -> bool:
        """Whether a router has had an answer of an engine, and so can send it requests."""
        shown = (await self._own_page()).replicas
        return any(each.url == url and each.health != UNKNOWN for each in shown)

    async def where(self) -> str:
        """The URL of these routers, for clients."""
        return self._settings.url_at(ray.util.get_node_ip_address())

    async def check_health(self) -> None:
        """Raises: EngineUnavailableError: no router answers."""
        await self._own_page()

    async def __del__(self) -> None:  # Serve calls and awaits it
        await self.end()

    async def end(self) -> None:
        """End after the requests under way."""
        if hasattr(self, "_running"):
            self._watching.cancel()
            self._stop.set()
            await self._running
            self._directory.cleanup()

    async def _page(self) -> _Page:
        """The status page of a process that listens at the port, by a connection of its own.

        Processes of another replica may share the port.

        Raises:
            EngineUnavailableError: none answers, or it is no router.
        """
        connections = HttpConnections(self._url, self._auth)
        try:
            return _read((await connections.get("/prefill_only/status", _ANSWER_S)).body)
        except (EngineUnavailableError, msgspec.DecodeError) as error:
            raise EngineUnavailableError(f"No router answers at {self._url} ({error}).") from error
        finally:
            connections.close()

    async def _own_page(self) -> _Page:
        """The status page of a process of this replica.

        Raises:
            EngineUnavailableError: no own process answers.
        """
        for _ in range(_MOST_STRANGERS):
            page = await self._page()
            if page.pid in self._supervisor.pids.values():
                return page
        raise EngineUnavailableError(f"Routers of another replica answer at {self._url}.")

    async def _take_over(self) -> None:
        """Take over the engines of the replica that this one replaces, if one listens there."""
        with contextlib.suppress(EngineUnavailableError):
            found = await self._page()
            self._heard_s = {each.url: time.monotonic() for each in found.replicas}

    async def _listening(self) -> None:
        """Wait until a router answers."""
        deadline = time.monotonic() + _LISTENING_S
        while True:
            try:
                return await self.check_health()
            except EngineUnavailableError:
                if time.monotonic() > deadline:
                    await self.end()
                    raise
            await asyncio.sleep(_LOOK_S)

    async def _watch(self) -> None:
        while True:
            oldest_s = time.monotonic() - _SILENT_S
            for url in [url for url, heard_s in self._heard_s.items() if heard_s < oldest_s]:
                logger.warning("Engine %s is forgotten: no report for %g s.", url, _SILENT_S)
                del self._heard_s[url]
            self._left_s = {
                url: left_s for url, left_s in self._left_s.items() if left_s > oldest_s
            }
            with contextlib.suppress(Exception):  # it fails while Serve's controller restarts
                self._deployment = await asyncio.to_thread(_states)
            self._say()
            await asyncio.sleep(BEAT_S)

    def _say(self) -> None:
        engines = Engines(tuple(sorted(self._heard_s)), self._deployment)
        if engines != self._said:
            self._said = engines
            self._supervisor.say(engines.to_line())


def _states() -> dict[str, int]:
    """How many engines are in each state, by Serve's names."""
    found = serve.status().applications.get(ENGINES)
    deployments = [] if found is None else found.deployments.values()
    return {
        str(state): count for each in deployments for state, count in each.replica_states.items()
    }
