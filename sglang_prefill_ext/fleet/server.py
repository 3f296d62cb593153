"""One router process: ``python -m sglang_prefill_ext.fleet.server SETTINGS``.

The supervisor writes a line to its standard input whenever the engines change. The process ends,
after the requests under way, on SIGTERM, and when its standard input ends, which means that the
supervisor is gone. The key of the engines is in its environment, where no list of processes shows
it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec

import uvicorn
import uvloop

from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.fleet.fleet import Fleet
from sglang_prefill_ext.fleet.replica import BEAT_S
from sglang_prefill_ext.fleet.router import Router
from sglang_prefill_ext.fleet.settings import API_KEY_VARIABLE, Engines, Settings
from sglang_prefill_ext.fleet.status import FleetExport
from sglang_prefill_ext.grpc_frontend.server import Health, serving
from sglang_prefill_ext.grpc_frontend.settings import Listening
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.metrics.pauses import pause_histogram
from sglang_prefill_ext.process.collector import FROZEN_THRESHOLDS, Collector
from sglang_prefill_ext.process.ports import listener_at

_ROLE = "fleet_router"

_HEARD_S = 25.0
"""How long a new router waits for its engines before it listens without them."""

_LOOK_S = 0.2
"""How often gRPC checks whether there are engines, and whether to stop."""

_BACKLOG = 2048
_MOST_CALLS = 2048  # over gRPC
_LONGEST_LINE = 1 << 20


async def serve(settings: Settings, api_key: str) -> None:
    """Serve until SIGTERM, then until the requests under way have ended.

    Raises:
        ConfigError: the address cannot be used.
    """
    labels = {"server": "fleet"}
    metrics = FrontendMetrics(labels)
    collector = Collector(_ROLE, pause_histogram(labels | {"role": _ROLE}))

    def on_session(session: Session | None) -> None:
        router.begin(session)
        collector.freeze_anew(FROZEN_THRESHOLDS)

    fleet = Fleet(metrics, api_key=api_key, extra_work=settings.extra_work, on_session=on_session)
    router = Router(fleet, metrics, collector, api_key=api_key)
    server = uvicorn.Server(_config(router, settings))
    async with fleet.running():
        tasks = _follow(fleet, server), _export(fleet, collector)
        beside = [asyncio.ensure_future(each) for each in tasks]
        try:
            await fleet.wait_heard(_HEARD_S)
            _stop_on_signals(server)
            listener = listener_at(settings.host, settings.port, _BACKLOG)
            servers = [server.serve(sockets=[listener])]
            if settings.grpc_port is not None:
                listening = Listening(
                    host=settings.host,
                    port=settings.grpc_port,
                    grace_s=settings.grace_s,
                    max_calls=_MOST_CALLS,
                )
                servers.append(serve_grpc(fleet, listening, api_key, lambda: server.should_exit))
            await asyncio.gather(*servers)
        finally:
            for task in beside:
                task.cancel()


async def serve_grpc(
    fleet: Fleet, listening: Listening, api_key: str, stopped: Callable[[], bool]
) -> None:
    """Serve gRPC calls by the fleet until `stopped`, then until those under way have ended.

    Args:
        api_key: clients have to show it as a bearer token; if empty, everybody is let in.

    Raises:
        ConfigError: the port cannot be used.
    """
    health, tokens = Health(listening.max_calls), [api_key] if api_key else []
    async with serving(listening, lambda: fleet.session, health, tokens):
        while not stopped():
            health.show(bool(fleet.whole.available()))
            await asyncio.sleep(_LOOK_S)


def _stop_on_signals(server: uvicorn.Server) -> None:
    # uvicorn's own handling ends the process after the HTTP requests, even if gRPC calls still run.
    server.capture_signals = nullcontext  # type: ignore[assignment,method-assign]
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.handle_exit, number, None)


def _config(router: Router, settings: Settings) -> uvicorn.Config:
    if find_spec("httptools"):  # without it uvicorn uses h11, which limits heads by itself
        from sglang_prefill_ext.process.http_heads import limit_heads

        limit_heads()
    return uvicorn.Config(
        router,
        lifespan="off",
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # nothing here asks where a client is
        timeout_graceful_shutdown=max(1, int(settings.grace_s)),
        timeout_keep_alive=settings.keep_alive_s,
    )


async def _export(fleet: Fleet, collector: Collector) -> None:
    export = FleetExport()
    while True:
        export.update(fleet)
        collector.show_pauses()
        await asyncio.sleep(BEAT_S)


async def _follow(fleet: Fleet, server: uvicorn.Server) -> None:
    """Set the engines that the supervisor names; stop the server when the supervisor is gone."""
    told = asyncio.StreamReader(limit=_LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(told), sys.stdin
    )
    async for line in told:
        fleet.set_engines(Engines.from_line(line))
    server.should_exit = True


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s router %(process)d: %(message)s")
    try:
        uvloop.run(serve(Settings.from_json(sys.argv[1]), os.environ.get(API_KEY_VARIABLE, "")))
    except ConfigError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
