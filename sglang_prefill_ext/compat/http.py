"""Routes of our own on SGLang's HTTP application."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from sglang_prefill_ext import __version__
from sglang_prefill_ext.compat.frontend_link import TokenizerManagerLink
from sglang_prefill_ext.frontend.packed_frontend import PackedFrontend
from sglang_prefill_ext.patching import engine

STATUS_PATH = "/prefill_only/status"


def add_routes(frontend: PackedFrontend, link: TokenizerManagerLink) -> None:
    """Add the status route, if this process serves HTTP at all.

    The module is looked up, not imported: an offline `Engine` never loads it.
    """
    server = sys.modules.get("sglang.srt.entrypoints.http_server")
    if server is None:
        return
    app: Any = server.app

    async def status() -> dict[str, Any]:
        return await _status(frontend, link)

    app.add_api_route(STATUS_PATH, status, methods=["GET"])


async def _status(frontend: PackedFrontend, link: TokenizerManagerLink) -> dict[str, Any]:
    return {
        "enabled": True,
        "version": __version__,
        "sglang_version": version("sglang"),
        "config": asdict(frontend.config),
        "frontend": {
            "pid": os.getpid(),
            "in_flight": frontend.in_flight,
            "counters": frontend.metrics.as_dict(),
            "patches": [state.as_dict() for state in engine.states()],
        },
        "schedulers": await link.scheduler_status(),
    }
