"""Fast routes, which take the place of some routes in SGLang's HTTP application.

FastAPI validates a request into one object after the other and converts its answer number by
number, which takes longer than the forward of a small model. Middlewares still run first, and so
authentication, metrics and CORS. Errors look like SGLang's, with the headers that SGLang drops.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
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

_Runs: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]

Serve: TypeAlias = Callable[[bytes, CallContext], Awaitable[Response | bytes]]
"""Answers a request, given its body; or returns the body for SGLang's own route to serve."""

OUR_PATHS = "/prefill_only/"


class FastRoute:
    """An ASGI application that takes the place of a route's own.

    Args:
        stock: the route's own application.
        headers: are added to the answers of `stock`, and so are those of `CallContext.error`.
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
            return  # before its request was complete
        with working_for(CallContext(request)) as call:
            try:
                answer = await self._serve(body, call)
            except HTTPException as error:
                answer = await _in_own_form(request, call.error or error)
            if isinstance(answer, bytes):
                send = self._adding_headers(send, call)
                await self.stock(scope, _replaying(answer, receive), send)
            else:
                await answer(scope, receive, send)

    def _adding_headers(self, send: Any, call: CallContext) -> Any:
        async def add(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
                _add_missing(message, call.error)
            await send(message)

        return add


class Lifespan:
    """The lifespan of an application, around which something else runs.

    Args:
        stock: SGLang's own.
        beside: runs what else is to run.
    """

    def __init__(
        self, stock: _Runs, beside: Callable[[], AbstractAsyncContextManager[Any]]
    ) -> None:
        self.stock = stock
        self._beside = beside

    @asynccontextmanager
    async def __call__(self, application: Any) -> AsyncIterator[Any]:
        # If ours failed inside of SGLang's, SGLang would first wait minutes for its warm-up.
        async with self._beside(), self.stock(application) as state:
            yield state


async def _in_own_form(request: Request, error: HTTPException) -> Response:
    """Return an error as SGLang's application answers it, with the headers that SGLang drops."""
    answer = await request.app.exception_handlers[HTTPException](request, error)
    answer.headers.update(error.headers or {})
    response: Response = answer
    return response


def _add_missing(start: Any, error: HTTPException | None) -> None:
    """Add an error's headers to the first message of its answer, unless it has them already."""
    if error is not None and error.status_code == start["status"]:
        headers = MutableHeaders(scope=start)
        for name, value in (error.headers or {}).items():
            headers.setdefault(name, value)


def _replaying(body: bytes, receive: Any) -> Any:
    """Return an ASGI `receive` that returns a body that was read already, then what follows it."""
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Any:
        return unread.pop() if unread else await receive()

    return replay


def shorten(app: Any, path: str, serve: Serve, headers: Mapping[str, str] = {}) -> None:
    """Let `serve` answer the requests of the application's route of that path.

    A path must have one route, and may have one fast route.

    Args:
        headers: see `FastRoute`.
    """
    (route,) = (route for route in app.routes if getattr(route, "path", None) == path)
    route.app = FastRoute(route.app, serve, headers)


def put_first(app: Any, paths: Sequence[str]) -> None:
    """Put the routes of these paths before all others, in this order.

    The router, and SGLang's metrics before it, compare a path with one route after the other. For
    the last routes of SGLang's application this takes a tenth of a millisecond.
    """
    places = {path: place for place, path in enumerate(paths)}
    app.router.routes.sort(key=lambda route: places.get(getattr(route, "path", ""), len(places)))


def restore(app: Any) -> None:
    """Remove from an application what an earlier engine of this process has added."""
    routes = app.router.routes
    for route in list(routes):
        if getattr(route, "path", "").startswith(OUR_PATHS):
            routes.remove(route)
        if isinstance(getattr(route, "app", None), FastRoute):
            route.app = route.app.stock
    if isinstance(app.router.lifespan_context, Lifespan):
        app.router.lifespan_context = app.router.lifespan_context.stock


async def answer_errors(
    original: Callable[..., Awaitable[Any]], serving: Any, request: Any, raw_request: Any
) -> Any:
    """AROUND `OpenAIServingBase.handle_request`.

    SGLang's method drops the headers of an `HTTPException`; that of rerank drops its status, too.
    Here both are put back.
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
    """Return the answer of our own routes to a wrong request, in the form of OpenAI's routes."""
    body = {"object": "error", "message": str(error), "type": "BadRequestError"}
    return JSONResponse(body | {"param": getattr(error, "field", ""), "code": 400}, 400)
