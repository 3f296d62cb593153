"""The gRPC service of a router (`prefill_ext.v1`), over the same fleet as its HTTP routes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sglang_prefill_ext.fleet.fleet import Fleet
from sglang_prefill_ext.grpc_frontend.server import Health, server_of
from sglang_prefill_ext.grpc_frontend.service import PrefillService
from sglang_prefill_ext.grpc_frontend.settings import Listening

_LOOK_S = 0.2
"""How often it is checked whether there are engines, and whether to stop."""


async def serve_grpc(
    fleet: Fleet, listening: Listening, api_key: str, stopped: Callable[[], bool]
) -> None:
    """Serve calls by the engines of a fleet until `stopped`, then until those under way have ended.

    Args:
        api_key: clients have to show it as a bearer token; if empty, everybody is let in.

    Raises:
        ConfigError: the port cannot be used.
    """
    health, tokens = Health(listening.max_calls), [api_key] if api_key else []
    server = server_of(listening, PrefillService(lambda: fleet.session), health, tokens)
    await server.start()
    while not stopped():
        health.show(bool(fleet.whole.available()))
        await asyncio.sleep(_LOOK_S)
    await health.enter_graceful_shutdown()
    await server.stop(listening.grace_s)
