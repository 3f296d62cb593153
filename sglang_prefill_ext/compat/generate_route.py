"""``POST /generate`` on the shorter way through the HTTP application."""

from __future__ import annotations

import sys
from typing import Any

from sglang.srt.managers.io_struct import GenerateReqInput
from starlette.requests import Request
from starlette.responses import Response

from sglang_prefill_ext.compat.fast_route import shorten
from sglang_prefill_ext.compat.http import SERVER_MODULE
from sglang_prefill_ext.frontend.generate_api import read_request

_PATH = "/generate"


def shorten_generate(app: Any) -> None:
    """Have FastAPI validate no request of the route that is read here."""
    shorten(app, _PATH, _serve)


async def _serve(body: bytes, request: Request) -> Response | bytes:
    """Answer as SGLang does; the body for what it is to read itself."""
    fields = read_request(body)
    if fields is None:
        return body
    server: Any = sys.modules[SERVER_MODULE]
    obj = GenerateReqInput(**fields)
    response: Response = await server.serve_generate_request(obj, request)
    return response
