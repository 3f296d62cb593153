"""Our own routes in SGLang's HTTP application: status, explain and garbage collection."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from fastapi import Depends, Request
from msgspec import to_builtins
from sglang.srt.entrypoints.openai.protocol import ScoringRequest
from sglang.srt.utils.auth import AuthLevel, auth_level

from sglang_prefill_ext import __version__
from sglang_prefill_ext.border import patches
from sglang_prefill_ext.border.http_server.fast_route import OUR_PATHS, refusal
from sglang_prefill_ext.border.tokenizer_manager.call_context import call_with
from sglang_prefill_ext.border.tokenizer_manager.gc_frontend import FrontendGc
from sglang_prefill_ext.border.tokenizer_manager.server import PrefillServer
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.ask_processes import Turns
from sglang_prefill_ext.frontend.explain import experts_recently
from sglang_prefill_ext.process.collector import action_of
from sglang_prefill_ext.process.stages import STARTUP

STATUS_PATH = f"{OUR_PATHS}status"
EXPLAIN_PATH = f"{OUR_PATHS}explain"
GC_PATH = f"{OUR_PATHS}gc"

SERVER_MODULE = "sglang.srt.entrypoints.http_server"
"""The application's module; looked up, not imported, since an offline `Engine` has none."""


def application() -> Any:
    """Return SGLang's HTTP application; None if this process serves no HTTP."""
    server: Any = sys.modules.get(SERVER_MODULE)
    return None if server is None else server.app


def add_routes(app: Any, server: PrefillServer) -> None:
    """Add status and explain to SGLang's HTTP application, and limit the heads of requests."""
    if find_spec("httptools"):  # without it uvicorn uses h11, which has that limit
        from sglang_prefill_ext.process.http_heads import limit_heads

        limit_heads()

    schedulers = Turns(server.link.scheduler_status)

    async def status() -> dict[str, Any]:
        """The status page; as it is for operators, it needs the key of administrative routes."""
        own = _status(server)  # before waiting for schedulers, which may be busy
        replicas = await schedulers.answer()
        broker = server.gc.broker
        return own | {"schedulers": replicas, "attached": broker.peers() if broker else []}

    administrative = auth_level(AuthLevel.ADMIN_OPTIONAL)
    app.add_api_route(STATUS_PATH, administrative(status), methods=["GET"])

    async def explain(request: ScoringRequest, raw_request: Request) -> Any:
        """Score, and answer with how that was done; SGLang's own refusals are passed on."""
        context = call_with(raw_request)
        context.explains = True
        serving = raw_request.app.state.openai_serving_score
        response = await serving.handle_request(request, raw_request)
        if response.status_code != 200:
            return response
        facts = context.explanation
        if facts is not None and facts["path"] == "packed":
            facts["experts_recently"] = experts_recently(await schedulers.answer())
        return facts

    like_score = [Depends(sys.modules[SERVER_MODULE].validate_json_request)]
    app.add_api_route(EXPLAIN_PATH, explain, methods=["POST"], dependencies=like_score)


def _status(server: PrefillServer) -> dict[str, Any]:
    path = server.path
    return {
        "enabled": True,
        "version": __version__,
        "sglang_version": version("sglang"),
        "config": asdict(path.config),
        "frontend": {
            "pid": os.getpid(),
            "in_flight": path.exchange.in_flight,
            "tokenizer": server.link.texts.status(),
            "counters": path.metrics.as_dict(),
            "startup": STARTUP.as_dict(),
            "patches": [asdict(state) for state in patches.states()],
        },
    }


def add_gc_route(app: Any, collection: FrontendGc) -> None:
    """Add the route; it needs the same key as SGLang's own administrative routes."""

    async def collect_garbage(raw_request: Request) -> Any:
        try:
            action = action_of(await raw_request.body())
        except RequestError as error:
            return refusal(error)
        reports, complete = await collection.act(action)
        processes = [to_builtins(report) for report in reports]
        return {"action": action, "complete": complete, "processes": processes}

    administrative = auth_level(AuthLevel.ADMIN_OPTIONAL)
    app.add_api_route(GC_PATH, administrative(collect_garbage), methods=["POST"])
