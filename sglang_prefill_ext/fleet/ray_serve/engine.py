"""The actor of one engine: starts a stock server on its node, and stops it after its work is done.

The actor computes nothing and passes no requests on: routers reach the server by HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import suppress
from typing import Any, ClassVar

import ray
from ray import serve

from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet.ray_serve.autoscaling import TOKENS
from sglang_prefill_ext.fleet.ray_serve.launch import ROUTERS, Launch
from sglang_prefill_ext.fleet.replica import BEAT_S, Replica
from sglang_prefill_ext.fleet.settings import API_KEY_VARIABLE
from sglang_prefill_ext.local_server import LocalServer
from sglang_prefill_ext.process.children import tethered

logger = logging.getLogger("ray.serve")

_READY_S = 1800.0
"""How long a start may take."""

_TOLD_S = 5.0
"""How long routers may take to answer."""

_HEARD_S = 30.0
"""How long a new engine waits for routers to ask it; they may come later, or not at all."""

_HEALTH_S = 25.0
_LOOK_S = 0.1
STOP_S = 60.0
"""How long SGLang may take to end after its requests; it checks every 5 s whether it should."""


class TetheredServer(LocalServer):
    """A server that ends with the actor, however that ends."""

    _module = "sglang_prefill_ext.fleet.ray_serve.server"

    def __init__(self, launch: Launch, host: str) -> None:
        flags = ["--enable-prefill-only", *launch.flags]
        # Unlike a demonstration's model, that of an engine may have to be downloaded.
        env = {
            "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "0"),
            API_KEY_VARIABLE: launch.api_key,
        }
        super().__init__(launch.model_path, flags, env=env, host=host)
        logger.info("Engine %s; its log is %s.", self.base_url, self.log_path)
        self.command = tethered(self.command)


class EngineReplica:
    """A replica of the deployment of engines.

    Raises:
        ServerStartError: the server does not start; with the last lines of its log.
    """

    _server_class: ClassVar[type[Any]] = TetheredServer

    async def __init__(self, launch: Launch) -> None:  # type: ignore[misc]
        self._launch = launch
        self._server = self._server_class(launch, ray.util.get_node_ip_address())
        # In this thread, which lives as long as the actor: its end is the server's.
        self._server.start()
        try:
            await asyncio.to_thread(self._server.wait_ready, _READY_S)
        except BaseException:
            await asyncio.to_thread(self._server.stop, 0.0)
            raise
        self._replica = Replica(self._server.base_url, launch.api_key)
        self._routers = serve.get_deployment_handle(ROUTERS, ROUTERS)
        self._healthy = True
        self._joining = asyncio.ensure_future(self._keep_joining())
        await self._heard()

    async def check_health(self) -> None:
        """Raises: EngineUnavailableError: Serve is to replace this replica."""
        try:
            await self._require_health()
        except Exception:
            self._healthy = False
            raise
        self._healthy = True

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return {TOKENS: float((await self._replica.state()).outstanding_tokens)}

    async def __del__(self) -> None:  # Serve calls and awaits it
        await self.end()

    async def end(self) -> None:
        """Leave the routers, finish their requests, and stop; an unhealthy engine stops at once.

        So does one that is still starting.
        """
        if not hasattr(self, "_joining"):
            if hasattr(self, "_server"):
                await asyncio.to_thread(self._server.stop, 0.0)
            return
        self._joining.cancel()
        await self._tell("leave")
        grace_s = 0.0
        if self._healthy:
            await self._drained()
            grace_s = self._launch.drain_s + STOP_S
        self._replica.connections.close()
        await asyncio.to_thread(self._server.stop, grace_s)

    async def _require_health(self) -> None:
        if not self._server.running:
            raise EngineUnavailableError(
                f"The engine has ended. The last lines of its log:\n{self._server.log_tail()}"
            )
        answer = await self._replica.connections.get("/health", _HEALTH_S)
        if answer.status != 200:
            raise EngineUnavailableError(f"GET /health: HTTP {answer.status}.")

    async def _keep_joining(self) -> None:
        """Tell the routers of this engine again and again, because one may have restarted."""
        while True:
            await self._tell("join")
            await asyncio.sleep(BEAT_S)

    async def _heard(self) -> None:
        """Wait until routers have asked this engine, because Serve may then end another one."""
        deadline = time.monotonic() + _HEARD_S
        while time.monotonic() < deadline:
            heard = await self._tell("has_heard")
            if heard and all(each is True for each in heard):
                return
            await asyncio.sleep(_LOOK_S)
        logger.warning("Routers have not asked engine %s yet.", self._server.base_url)

    async def _tell(self, what: str) -> list[Any]:
        """Call a method of every router with this engine's URL; return answers and exceptions.

        There are none if the routers do not answer in time.
        """
        try:
            telling = self._routers.broadcast(what, self._server.base_url)
            answers = telling.results_async(return_exceptions=True)
            return list(await asyncio.wait_for(answers, _TOLD_S))
        except Exception as error:
            logger.warning("The routers did not answer a call of %s: %s", what, error)
            return []

    async def _drained(self) -> None:
        """Wait until no packed request is under way; SGLang itself waits for all others."""
        with suppress(TimeoutError, EngineUnavailableError):
            async with asyncio.timeout(self._launch.drain_s):
                while (await self._replica.state()).outstanding_tokens:  # noqa: ASYNC110 (nobody tells)
                    await asyncio.sleep(_LOOK_S)
