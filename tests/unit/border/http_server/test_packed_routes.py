"""Errors of fast routes: answers that cannot be written now, and headers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from sglang.srt.entrypoints.openai.protocol import UsageInfo

from sglang_prefill_ext.border.http_server.openai_routes import _written
from sglang_prefill_ext.border.http_server.own_routes import EXPLAIN_PATH
from sglang_prefill_ext.border.http_server.packed_routes import shorten_routes
from sglang_prefill_ext.border.tokenizer_manager.call_context import CallContext, current_call
from sglang_prefill_ext.frontend.answers import usage_of
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.metrics import FrontendMetrics

MANY = 100_000


async def test_an_answer_too_many_for_the_thread_gets_429() -> None:
    metrics = FrontendMetrics()
    path = SimpleNamespace(metrics=metrics, answers=Worker("answers", most_waiting=0))
    server: Any = SimpleNamespace(path=path)
    context = CallContext(None)
    assert await _written(server, context, 1, lambda: b"small") == b"small"
    with pytest.raises(HTTPException) as raised:
        await _written(server, context, MANY, lambda: b"large")
    assert raised.value.status_code == 429
    assert context.error is raised.value


@pytest.mark.parametrize("path", ["/encode", "/classify"])
async def test_native_routes_of_vectors_tell_when_to_come_again(path: str) -> None:
    app, retry = FastAPI(), {"Retry-After": "3"}

    async def busy() -> None:
        current_call().end_with(HTTPException(429, "busy", retry))
        raise HTTPException(429, "busy")

    fast = ("/v1/score", EXPLAIN_PATH, "/v1/decisions", "/v1/embeddings", "/encode", "/classify")
    for each in fast:
        app.add_api_route(each, busy, methods=["POST"])
    manager = SimpleNamespace(is_generation=False)
    server: Any = SimpleNamespace(manager=manager, embed=object(), tokens=None)
    shorten_routes(app, server)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        answer = await client.post(path, json={})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")


def test_the_routes_of_packed_calls_are_tried_first() -> None:
    app = FastAPI()

    async def nothing() -> None:
        pass

    last = ("/v1/chat/completions", "/v1/decisions", "/v1/rerank", "/v1/score")
    for path in ("/health", EXPLAIN_PATH, *last):
        app.add_api_route(path, nothing, methods=["POST"])
    manager = SimpleNamespace(is_generation=True)
    server: Any = SimpleNamespace(manager=manager, embed=None, tokens=None)
    shorten_routes(app, server)
    paths = [route.path for route in app.routes]  # type: ignore[attr-defined]
    assert paths[:4] == ["/v1/score", "/v1/rerank", "/v1/chat/completions", "/v1/decisions"]


def test_answers_tell_usage_as_sglang_does() -> None:
    usage = UsageInfo(prompt_tokens=7, total_tokens=7).model_dump()
    assert [*usage_of(7).items()] == [*usage.items()]
