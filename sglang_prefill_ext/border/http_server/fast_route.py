"""A way of our own into SGLang's HTTP application, in front of some routes.

FastAPI validates a request into one object after the other and turns its answer into plain
values number by number, which takes longer than the forward of a small model. Middlewares, so
authentication, metrics and CORS, stay in front. Errors look like those of OpenAI's routes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sglang_prefill_ext.border.tokenizer_manager.call_context import (
    CallContext,
    call_with,
    working_for,
)
from sglang_prefill_ext.errors import PrefillExtError
from sglang_prefill_ext.frontend.options import says_json

_App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

Serve: TypeAlias = Callable[[bytes, CallContext], Awaitable[Response | bytes]]
"""Answers a request, given its body; or returns the body for SGLang's own route to serve."""

OUR_PATHS = "/prefill_only/"

NO_HEADERS: Mapping[str, str] = {}


class FastRoute:
    """An ASGI application in the place of a route's own.

    Args:
        stock: the route's own application.
        headers: of what `stock` answers, beside its own.
    """

    def __init__(self, stock: _App, serve: Serve, headers: Mapping[str, str]) -> None:
        self.stock = stock
        self._serve = serve
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        if not says_json(request.headers):
            await self.stock(scope, receive, send)
            return
        try:
            body = await request.body()
        except ClientDisconnect:
            return  # within its request: there is nothing to answer, and nobody to tell
        with working_for(CallContext(request)) as call:
            await self._answer(body, call, receive, send)

    async def _answer(self, body: bytes, call: CallContext, receive: Any, send: Any) -> None:
        answer, scope = await self._serve(body, call), call.request.scope
        if isinstance(answer, bytes):
            await self.stock(scope, _Replay(answer, receive), self._adding_headers(send))
        else:
            await answer(scope, receive, send)

    def _adding_headers(self, send: Any) -> Any:
        if not self._headers:
            return send

        async def add(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        return add


class _Replay:
    """Receives a body that was read already, then what follows it."""

    def __init__(self, body: bytes, receive: Callable[[], Awaitable[Any]]) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Any:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def shorten(app: Any, path: str, serve: Serve, headers: Mapping[str, str] = NO_HEADERS) -> None:
    """Let `serve` answer the requests of the application's route of that path.

    The router tries one route after the other, so this becomes the first; no other has its path.
    It has one fast route.

    Args:
        headers: see `FastRoute`.
    """
    routes = app.router.routes
    (route,) = (route for route in routes if getattr(route, "path", None) == path)
    routes.remove(route)
    routes.insert(0, route)
    route.app = FastRoute(route.app, serve, headers)


def restore(app: Any) -> None:
    """Take out of an application whatever an earlier engine of this process has put in."""
    routes = app.router.routes
    for route in list(routes):
        if getattr(route, "path", "").startswith(OUR_PATHS):
            routes.remove(route)
        if isinstance(getattr(route, "app", None), FastRoute):
            route.app = route.app.stock


async def answer_errors(
    original: Callable[..., Awaitable[Any]], serving: Any, request: Any, raw_request: Any
) -> Any:
    """AROUND `OpenAIServingBase.handle_request`.

    It drops the headers of an `HTTPException`, and rerank its status as well.
    """
    context = call_with(raw_request)
    response = await original(serving, request, raw_request)
    error = context.error
    return response if error is None else error_response(serving, error)


def error_response(serving: Any, error: HTTPException | ValueError) -> Any:
    """Return the answer to a request that ends with an error, as an OpenAI route gives it."""
    if isinstance(error, ValueError):
        return serving.create_error_response(str(error))
    status = error.status_code
    answer = serving.create_error_response(error.detail, str(status), status)
    answer.headers.update(error.headers or {})
    return answer


def refusal(error: PrefillExtError) -> JSONResponse:
    """Return the answer of a route of ours to a wrong request, in the form of OpenAI's routes."""
    body = {"object": "error", "message": str(error), "type": "BadRequestError"}
    return JSONResponse(body | {"param": getattr(error, "field", ""), "code": 400}, 400)
