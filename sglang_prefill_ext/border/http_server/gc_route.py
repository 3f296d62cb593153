"""The administrative route by which an operator controls garbage collection."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from msgspec import to_builtins
from sglang.srt.utils.auth import AuthLevel, auth_level

from sglang_prefill_ext.border.tokenizer_manager.gc_frontend import FrontendGc
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.process.collector import action_of

GC_PATH = "/prefill_only/gc"


def add_gc_route(app: Any, collection: FrontendGc) -> None:
    """Add the route; it takes the keys that SGLang's own administrative routes take."""

    async def collect_garbage(raw_request: Request) -> Any:
        try:
            action = action_of(await raw_request.body())
        except RequestError as error:
            return _refusal(error)
        reports, complete = await collection.act(action)
        processes = [to_builtins(report) for report in reports]
        return {"action": action, "complete": complete, "processes": processes}

    administrative = auth_level(AuthLevel.ADMIN_OPTIONAL)
    app.add_api_route(GC_PATH, administrative(collect_garbage), methods=["POST"])


def _refusal(error: RequestError) -> JSONResponse:
    """Return the answer to a wrong request, in the form of SGLang's OpenAI routes."""
    body = {"object": "error", "message": str(error), "type": "BadRequestError"}
    return JSONResponse(body | {"param": error.field, "code": 400}, 400)
