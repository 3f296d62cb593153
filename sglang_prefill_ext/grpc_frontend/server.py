"""Runs a gRPC server with `prefill_ext.v1`, the health service and reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.grpc_frontend import prefill_pb2, prefill_pb2_grpc, transport
from sglang_prefill_ext.grpc_frontend.service import PrefillService
from sglang_prefill_ext.grpc_frontend.settings import Listening
from sglang_prefill_ext.grpc_frontend.transport import BearerAuth
from sglang_prefill_ext.process.ports import joined

_SERVICE = prefill_pb2.DESCRIPTOR.services_by_name["Prefill"].full_name

_WATCHING = 1 / 8
"""Largest share of `max_calls` for watches of the health, which last as long as clients like."""

_TOLD_S = 0.1
"""How long it takes until those who watch have been told of a shutdown."""


class Health(health.aio.HealthServicer):  # type: ignore[misc]  # it has no types
    """The standard health service: serving while an engine is there."""

    def __init__(self, max_calls: int) -> None:
        super().__init__()
        self._most_watches = max(1, int(max_calls * _WATCHING))
        self._watches: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._shown: bool | None = None
        self.show(False)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802
        if len(self._watches) >= self._most_watches:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{len(self._watches)} clients watch already. Use Check, or try again later.",
            )
        watch = asyncio.ensure_future(super().Watch(request, context))
        self._watches.add(watch)
        try:
            await watch
        except asyncio.CancelledError:
            if not self._gracefully_shutting_down:
                raise
        finally:
            self._watches.discard(watch)

    async def enter_graceful_shutdown(self) -> None:
        """Tell who watches, and end these calls, for which a shutdown would wait."""
        await super().enter_graceful_shutdown()
        if self._watches:
            await asyncio.sleep(_TOLD_S)
        for watch in self._watches:
            watch.cancel()

    def show(self, serving: bool) -> None:
        """Show whether there is an engine."""
        if serving == self._shown:
            return
        self._shown = serving
        task = asyncio.ensure_future(self._show(serving))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _show(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.ServingStatus
        for name in ("", _SERVICE):
            await self.set(name, status.SERVING if serving else status.NOT_SERVING)


@asynccontextmanager
async def serving(
    settings: Listening,
    session: Callable[[], Session],
    health_of_engine: Health,
    tokens: Sequence[str],
) -> AsyncIterator[None]:
    """Serve calls in the body of the `with` statement, then end those under way.

    Args:
        session: see `PrefillService`.
        tokens: a client has to show one of these; if there are none, everybody is let in.

    Raises:
        ConfigError: a file of the settings cannot be used, or the port.
    """
    server = grpc.aio.server(
        interceptors=[BearerAuth(tokens)] if tokens else [],
        options=transport.server_options(settings),
        maximum_concurrent_rpcs=settings.max_calls,
        compression=transport.ALGORITHMS[settings.compression],
    )
    service = PrefillService(session, settings.most_bytes)
    prefill_pb2_grpc.add_PrefillServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(health_of_engine, server)
    if settings.reflection:
        names = (_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    address = joined(settings.host, settings.port)
    credentials = transport.credentials(settings)
    try:
        if credentials is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigError(
            f"--host, --port: {address} cannot be used ({error}). Check the address and TLS files."
        ) from error
    await server.start()
    yield
    await health_of_engine.enter_graceful_shutdown()
    await server.stop(settings.grace_s)
