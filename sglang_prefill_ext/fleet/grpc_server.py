"""`prefill_ext.v1` of a router, over the same fleet as its HTTP routes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sglang_prefill_ext.fleet.fleet import Fleet
from sglang_prefill_ext.grpc_frontend.server import Health, server_of
from sglang_prefill_ext.grpc_frontend.service import PrefillService
from sglang_prefill_ext.grpc_frontend.settings import Listening

_LOOK_S = 0.2
"""How often it is seen whether there are engines, and whether to stop."""


class GrpcServer:
    """Serves calls by the engines of a fleet.

    Args:
        api_key: that clients show as a bearer token; empty: everybody is let in.
    """

    def __init__(self, fleet: Fleet, listening: Listening, api_key: str) -> None:
        self._fleet = fleet
        self._listening = listening
        self._tokens = [api_key] if api_key else []
        self._service = PrefillService(lambda: fleet.session)

    async def serve(self, stopped: Callable[[], bool]) -> None:
        """Serve until `stopped`, then until the calls under way have ended.

        Raises:
            ConfigError: the port cannot be used.
        """
        health = Health(self._listening.max_calls)
        server = server_of(self._listening, self._service, health, self._tokens)
        await server.start()
        while not stopped():
            health.show(bool(self._fleet.whole.available()))
            await asyncio.sleep(_LOOK_S)
        await health.enter_graceful_shutdown()
        await server.stop(self._listening.grace_s)
