"""One gRPC front-end process: ``python -m sglang_prefill_ext.grpc_frontend.servicer SETTINGS``.

It goes down, after the calls under way, on SIGTERM, and when its standard input ends: then the
supervisor is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Any

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from sglang_prefill_ext.attach.connection import EngineConnection
from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.grpc_frontend import prefill_pb2, prefill_pb2_grpc, transport
from sglang_prefill_ext.grpc_frontend.auth import BearerAuth
from sglang_prefill_ext.grpc_frontend.service import PrefillService
from sglang_prefill_ext.grpc_frontend.settings import Settings
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.process.collector import Collector

_SERVICE = prefill_pb2.DESCRIPTOR.services_by_name["Prefill"].full_name
_ATTACH_S = 2.0
"""For how long a new front end waits for the engine before it listens all the same."""


_WATCHING = 1 / 8
"""Share of the calls under way that may watch the health, for as long as their clients like."""


class _HealthServicer(health.aio.HealthServicer):  # type: ignore[misc]  # it has no types
    def __init__(self, most_watches: int) -> None:
        super().__init__()
        self._most_watches = most_watches
        self._watches = 0

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802
        if self._watches >= self._most_watches:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._watches} clients watch already. Use Check, or try again later.",
            )
        self._watches += 1
        try:
            await super().Watch(request, context)
        finally:
            self._watches -= 1


class Health:
    """The standard health service: serving while the engine is there."""

    def __init__(self, max_calls: int) -> None:
        self.servicer = _HealthServicer(max(1, int(max_calls * _WATCHING)))
        self._tasks: set[asyncio.Task[None]] = set()
        self.show(None)

    def show(self, session: Session | None) -> None:
        """Show whether there is a session with the engine."""
        task = asyncio.ensure_future(self._set(session is not None))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _set(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.ServingStatus
        for name in ("", _SERVICE):
            await self.servicer.set(name, status.SERVING if serving else status.NOT_SERVING)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Serve until `stop`, then until the calls under way have ended.

    Raises:
        ConfigError: a file of the settings cannot be used, or the port.
    """
    metrics, health_of_engine = FrontendMetrics(), Health(settings.max_calls)
    collector = Collector("grpc_front_end")

    def on_change(session: Session | None) -> None:
        service.forget()
        health_of_engine.show(session)

    engine = EngineConnection(settings.attach, metrics, collector, on_change)
    service = PrefillService(engine, metrics)
    async with engine.running():
        server = _server(settings, service, health_of_engine)
        # One that takes the place of another must not refuse what the other's neighbours can serve.
        await engine.wait_attached(_ATTACH_S)
        await server.start()
        await stop.wait()
        await health_of_engine.servicer.enter_graceful_shutdown()
        await server.stop(settings.grace_s)


def _server(
    settings: Settings, service: PrefillService, health_of_engine: Health
) -> grpc.aio.Server:
    tokens = transport.bearer_tokens(settings)
    server = grpc.aio.server(
        interceptors=[BearerAuth(tokens)] if tokens else [],
        options=transport.server_options(settings),
        maximum_concurrent_rpcs=settings.max_calls,
        compression=transport.compression(settings),
    )
    prefill_pb2_grpc.add_PrefillServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(health_of_engine.servicer, server)
    if settings.reflection:
        names = (_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    address, credentials = transport.address_of(settings), transport.credentials(settings)
    try:
        if credentials is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigError(
            f"--host, --port: {address} cannot be used ({error}). Check the address and TLS files."
        ) from error
    return server


async def _run(settings: Settings) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def on_input() -> None:
        if not os.read(sys.stdin.fileno(), 1):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    loop.add_reader(sys.stdin.fileno(), on_input)
    await serve(settings, stop)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s front end %(process)d: %(message)s")
    try:
        uvloop.run(_run(Settings.from_json(sys.argv[1])))
    except ConfigError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
