from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sglang_prefill_ext.border.http_server.fast_route import (
    OUR_PATHS,
    Lifespan,
    answer_errors,
    put_first,
    restore,
    shorten,
)
from sglang_prefill_ext.border.tokenizer_manager.call_context import (
    CallContext,
    call_with,
    current_call,
    with_status,
)
from sglang_prefill_ext.errors import ConfigError, ServerBusyError

JSON = {"content-type": "application/json; charset=utf-8"}


class Setup:
    """An application whose route `/echo` is served by `serve` where the body is short."""

    def __init__(self) -> None:
        self.app = FastAPI()
        self.seen: list[bytes] = []

        @self.app.get("/other")
        async def other() -> str:
            return "other"

        @self.app.post("/echo")
        async def echo(request: Request) -> Any:
            return {"stock": (await request.body()).decode(), "again": await request.json()}

        shorten(self.app, "/echo", self.serve)

    async def serve(self, body: bytes, call: CallContext) -> Response | bytes:
        self.seen.append(body)
        assert current_call() is call
        assert call.request.headers["x-mark"] == "1"
        return (
            Response(b"short", media_type="text/plain")
            if len(body) < 10
            else body.replace(b"1", b"9")
        )

    async def post(self, path: str, content: Any, **headers: str) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.post(path, content=content, headers={"x-mark": "1", **headers})


async def test_what_is_served_never_reaches_the_route() -> None:
    setup = Setup()
    response = await setup.post("/echo", b"[1]", **JSON)
    assert (response.status_code, response.text) == (200, "short")
    assert setup.seen == [b"[1]"]


async def test_what_is_left_reaches_the_route_with_the_body_that_serve_returns() -> None:
    setup = Setup()
    numbers = b"[1, 2, 3, 4, 5, 6]"

    async def in_parts() -> Any:
        yield numbers[:7]
        yield numbers[7:]

    response = await setup.post("/echo", in_parts(), **JSON)
    assert response.json() == {"stock": "[9, 2, 3, 4, 5, 6]", "again": [9, 2, 3, 4, 5, 6]}
    assert setup.seen == [numbers]


@pytest.mark.parametrize("kind", ["text/plain", ""])
async def test_other_content_types_are_the_routes_matter(kind: str) -> None:
    setup = Setup()
    response = await setup.post("/echo", b"1", **{"content-type": kind})
    assert response.json()["stock"] == "1"
    assert setup.seen == []


async def test_other_routes_and_methods_are_untouched() -> None:
    setup = Setup()
    transport = httpx.ASGITransport(setup.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        assert (await client.get("/other")).json() == "other"
        assert (await client.get("/echo")).status_code == 405
    assert setup.seen == []


def test_a_path_without_a_route_is_an_error() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        shorten(FastAPI(), "/missing", Setup().serve)


async def test_what_the_route_answers_gets_further_headers() -> None:
    setup = Setup()
    restore(setup.app)
    shorten(setup.app, "/echo", setup.serve, {"x-more": "1"})
    assert (await setup.post("/echo", b"[1, 2, 3, 4, 5, 6]", **JSON)).headers["x-more"] == "1"
    assert "x-more" not in (await setup.post("/echo", b"[1]", **JSON)).headers


@pytest.mark.parametrize("by_route", [False, True])
async def test_an_error_keeps_the_headers_that_the_application_drops(by_route: bool) -> None:
    app = FastAPI()

    @app.exception_handler(HTTPException)
    async def without_headers(_request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"message": error.detail}, error.status_code)

    @app.post("/busy")
    async def busy() -> None:
        raise HTTPException(429, "busy")

    async def serve(body: bytes, call: CallContext) -> Response | bytes:
        call.error = HTTPException(429, "busy", {"Retry-After": "3"})
        if by_route:
            return body
        raise HTTPException(429, "busy")

    shorten(app, "/busy", serve)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        answer = await client.post("/busy", content=b"[]", headers=JSON)
    assert (answer.status_code, answer.json()) == (429, {"message": "busy"})
    assert answer.headers.get_list("retry-after") == ["3"]


def test_routes_that_are_put_first_are_tried_before_all_others_which_keep_their_order() -> None:
    app = FastAPI()
    for path in ("/a", "/b", "/c", "/b", "/d"):
        app.add_api_route(path, lambda: "", methods=["GET"])
    before = [route.path for route in app.routes]  # type: ignore[attr-defined]
    for _ in range(2):  # engines
        put_first(app, ["/d", "/missing", "/b"])
        after = [route.path for route in app.routes]  # type: ignore[attr-defined]
        rest = [path for path in before if path not in ("/b", "/d")]
        assert after == ["/d", "/b", "/b", *rest]


async def test_an_application_is_restored_for_the_next_engine() -> None:
    setup = Setup()
    restore(setup.app)
    before = [(route.path, route.app) for route in setup.app.router.routes]  # type: ignore[attr-defined]
    for _ in range(3):  # engines
        restore(setup.app)
        setup.app.add_api_route(f"{OUR_PATHS}status", lambda: "status", methods=["GET"])
        shorten(setup.app, "/echo", setup.serve)
    assert (await setup.post("/echo", b"[1]", **JSON)).text == "short"
    restore(setup.app)
    after = [(route.path, route.app) for route in setup.app.router.routes]  # type: ignore[attr-defined]
    assert sorted(after, key=str) == sorted(before, key=str)
    assert (await setup.post("/echo", b"[1]", **JSON)).json()["stock"] == "[1]"


async def test_only_what_the_last_engine_runs_is_run_beside_an_application() -> None:
    app, run = FastAPI(), list[str]()

    @asynccontextmanager
    async def beside(name: str) -> AsyncIterator[None]:
        run.append(f"{name} starts")
        yield
        run.append(f"{name} ends")

    stock = app.router.lifespan_context
    for name in ("first", "second"):
        restore(app)
        app.router.lifespan_context = Lifespan(app.router.lifespan_context, partial(beside, name))
    async with app.router.lifespan_context(app):
        assert run == ["second starts"]
    assert run == ["second starts", "second ends"]
    restore(app)
    assert app.router.lifespan_context == stock


async def test_sglang_does_not_start_if_what_is_to_run_beside_it_cannot() -> None:
    started = list[str]()

    @asynccontextmanager
    async def stock(_application: Any) -> AsyncIterator[None]:
        started.append("stock")
        yield

    @asynccontextmanager
    async def beside() -> AsyncIterator[None]:
        raise ConfigError("another engine listens there")
        yield

    with pytest.raises(ConfigError, match="another engine"):
        async with Lifespan(stock, beside)(FastAPI()):
            pass
    assert not started


class StubServing:
    """Drops the status and the headers of an error, as SGLang does."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    async def handle(self, _serving: Any, _request: Any, _raw_request: Any) -> Any:
        return self.answer

    def create_error_response(self, message: str, err_type: str, status_code: int) -> Any:
        return SimpleNamespace(message=message, type=err_type, status=status_code, headers={})


def http_request() -> Any:
    return SimpleNamespace(scope={})


async def test_an_error_is_answered_with_its_status_and_headers() -> None:
    serving, raw_request = StubServing(answer="400, and no headers"), http_request()
    with_status(ServerBusyError("busy"), call_with(raw_request))
    answer = await answer_errors(serving.handle, serving, None, raw_request)
    assert (answer.message, answer.type, answer.status) == ("busy", "429", 429)
    assert answer.headers == {"Retry-After": "1"}
