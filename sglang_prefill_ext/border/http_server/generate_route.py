"""``POST /generate`` on the shorter way through the HTTP application."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from sglang.srt.managers.io_struct import GenerateReqInput
from starlette.requests import Request
from starlette.responses import Response

from sglang_prefill_ext.border.http_server.fast_route import JSON, shorten
from sglang_prefill_ext.border.http_server.own_routes import SERVER_MODULE
from sglang_prefill_ext.border.tokenizer_manager.direct_generate import DirectGenerate
from sglang_prefill_ext.frontend.token.generate_api import read_request

_PATH = "/generate"


def shorten_generate(app: Any, direct: DirectGenerate) -> None:
    """Have FastAPI validate no request of the route that is read here."""
    shorten(app, _PATH, partial(_serve, direct))


async def _serve(direct: DirectGenerate, body: bytes, request: Request) -> Response | bytes:
    """Answer as SGLang does; the body for what it is to read itself."""
    read = read_request(body)
    if read is None:
        return body
    content = await direct.answer(read, request)
    if content is not None:
        return Response(content, media_type=JSON)
    server: Any = sys.modules[SERVER_MODULE]
    obj = GenerateReqInput(**read.arguments())
    response: Response = await server.serve_generate_request(obj, request)
    return response
