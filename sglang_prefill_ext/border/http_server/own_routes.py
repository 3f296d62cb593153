"""Routes of our own on SGLang's HTTP application."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from fastapi import Depends, Request
from sglang.srt.entrypoints.openai.protocol import ScoringRequest
from sglang.srt.utils.auth import AuthLevel, auth_level

from sglang_prefill_ext import __version__
from sglang_prefill_ext.attach.broker import Broker
from sglang_prefill_ext.border import patches
from sglang_prefill_ext.border.http_server.fast_route import OUR_PATHS
from sglang_prefill_ext.border.tokenizer_manager.frontend_link import TokenizerManagerLink
from sglang_prefill_ext.frontend.ask_processes import Turns
from sglang_prefill_ext.frontend.score.score_frontend import ScoreFrontend
from sglang_prefill_ext.process.stages import STARTUP

STATUS_PATH = f"{OUR_PATHS}status"
EXPLAIN_PATH = f"{OUR_PATHS}explain"

SERVER_MODULE = "sglang.srt.entrypoints.http_server"
"""Where the application is; not imported but looked up, since an offline `Engine` has none."""

# Entry of an ASGI scope that asks for an explanation, and holds it once the request was served.
_EXPLANATION = "prefill_only_explanation"


def application() -> Any:
    """Return SGLang's HTTP application; None if this process serves no HTTP."""
    server: Any = sys.modules.get(SERVER_MODULE)
    return None if server is None else server.app


def add_routes(
    app: Any, frontend: ScoreFrontend, link: TokenizerManagerLink, broker: Broker | None
) -> None:
    """Add our routes to SGLang's HTTP application, and a limit to what it reads of heads."""
    if find_spec("httptools"):  # else uvicorn takes h11, which has that limit
        from sglang_prefill_ext.border.http_server.http_heads import limit_heads

        limit_heads()

    schedulers = Turns(link.scheduler_status)

    async def status() -> dict[str, Any]:
        """Tell what an operator wants to know, so it takes the keys of administrative routes."""
        own = _status(frontend, link)  # as it is now, while schedulers may be busy
        replicas = await schedulers.answer()
        attached = [] if broker is None else broker.peers()
        return own | {"schedulers": replicas, "attached": attached}

    administrative = auth_level(AuthLevel.ADMIN_OPTIONAL)
    app.add_api_route(STATUS_PATH, administrative(status), methods=["GET"])
    server: Any = sys.modules[SERVER_MODULE]
    like_score = [Depends(server.validate_json_request)]
    app.add_api_route(EXPLAIN_PATH, _explain, methods=["POST"], dependencies=like_score)


def note_explanation(request: Any, explanation: Callable[[], dict[str, Any]]) -> None:
    """Keep how a request was served, if it asks for that."""
    scope = getattr(request, "scope", {})
    if _EXPLANATION in scope:
        scope[_EXPLANATION] = explanation()


async def _explain(request: ScoringRequest, raw_request: Request) -> Any:
    """Score, and answer with how it was done; what SGLang refuses is refused in its words."""
    raw_request.scope[_EXPLANATION] = None
    serving = raw_request.app.state.openai_serving_score
    response = await serving.handle_request(request, raw_request)
    return raw_request.scope[_EXPLANATION] if response.status_code == 200 else response


def _status(frontend: ScoreFrontend, link: TokenizerManagerLink) -> dict[str, Any]:
    return {
        "enabled": True,
        "version": __version__,
        "sglang_version": version("sglang"),
        "config": asdict(frontend.config),
        "frontend": {
            "pid": os.getpid(),
            "in_flight": frontend.exchange.in_flight,
            "tokenizer": link.texts.status(),
            "counters": frontend.metrics.as_dict(),
            "startup": STARTUP.as_dict(),
            "patches": [state.as_dict() for state in patches.states()],
        },
    }
