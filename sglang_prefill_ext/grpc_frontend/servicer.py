"""One gRPC front-end process: ``python -m sglang_prefill_ext.grpc_frontend.servicer SETTINGS``.

It ends, after the calls under way, on SIGTERM, and when its standard input ends, which means that
the supervisor is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import uvloop

from sglang_prefill_ext.attach.connection import EngineConnection
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.grpc_frontend import transport
from sglang_prefill_ext.grpc_frontend.server import Health, serving
from sglang_prefill_ext.grpc_frontend.settings import Settings
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.process.collector import Collector
from sglang_prefill_ext.process.supervisor import told_to_stop

_ATTACH_S = 2.0
"""How long a new front end waits for the engine before it listens without one."""


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Serve until `stop`, then until the calls under way have ended.

    Raises:
        ConfigError: a file of the settings cannot be used, or the port.
    """
    metrics, health_of_engine = FrontendMetrics(), Health(settings.max_calls)
    collector = Collector("grpc_front_end")
    engine = EngineConnection(
        *(settings.attach, metrics, collector),
        on_change=lambda session: health_of_engine.show(session is not None),
    )
    async with engine.running():
        tokens = transport.bearer_tokens(settings)
        # Front ends share a port, and the server takes connections once it is made: one without the
        # engine would refuse calls that others can serve.
        await engine.wait_attached(_ATTACH_S)
        async with serving(settings, lambda: engine.session, health_of_engine, tokens):
            await stop.wait()


async def _run(settings: Settings) -> None:
    stop, loop = told_to_stop(), asyncio.get_running_loop()

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
