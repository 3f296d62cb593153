"""Our routes are protected by SGLang's own check of API keys."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Response
from sglang.srt.utils.auth import add_api_key_middleware

from sglang_prefill_ext.border.http_server import own_routes
from sglang_prefill_ext.border.tokenizer_manager.call_context import call_with
from tests.unit.frontend.links import StubLink, path_of

LAYER = {"padded": 1.2, "stock_padded": 1.5, "busiest_share": 0.1}


async def scheduler_status() -> list[Any]:
    return [{"dp_rank": 0, "experts": {"layers": [LAYER]}}]


def application(monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    server = SimpleNamespace(validate_json_request=lambda: None)
    monkeypatch.setitem(sys.modules, own_routes.SERVER_MODULE, server)
    # uvicorn's own class stays as it is
    monkeypatch.setattr(own_routes, "find_spec", lambda _: None)
    link: Any = SimpleNamespace(
        scheduler_status=scheduler_status, texts=SimpleNamespace(status=dict)
    )
    collection = SimpleNamespace(broker=None)
    ours: Any = SimpleNamespace(path=path_of(StubLink()), link=link, gc=collection)
    app = FastAPI()
    own_routes.add_routes(app, ours)
    return app


@pytest.mark.parametrize(
    ("keys", "opens"),
    [
        ({}, ["", "user", "admin"]),
        ({"api_key": "user"}, ["user"]),
        ({"admin_api_key": "admin"}, ["admin"]),
        ({"api_key": "user", "admin_api_key": "admin"}, ["admin"]),
    ],
)
@pytest.mark.filterwarnings("ignore:ORJSONResponse")
async def test_the_status_is_for_administrators(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, str], opens: list[str]
) -> None:
    app = application(monkeypatch)
    add_api_key_middleware(app, **{"api_key": None, "admin_api_key": None} | keys)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        for key in ("", "user", "admin"):
            headers = {"authorization": f"Bearer {key}"}
            response = await client.get(own_routes.STATUS_PATH, headers=headers)
            assert response.status_code == (200 if key in opens else 401), key
            if key in opens:
                assert response.json()["schedulers"] == await scheduler_status()


@pytest.mark.parametrize(
    ("path", "status", "answer"),
    [
        (
            "packed",
            200,
            {"path": "packed", "experts_recently": [{"dp_rank": 0, "layer": 0} | LAYER]},
        ),
        ("stock", 200, {"path": "stock"}),
        ("packed", 400, "refused"),
    ],
)
async def test_an_explanation_tells_of_experts_what_the_schedulers_say(
    monkeypatch: pytest.MonkeyPatch, path: str, status: int, answer: Any
) -> None:
    app = application(monkeypatch)

    async def handle_request(_request: object, raw_request: object) -> Response:
        call_with(raw_request).explain(lambda: {"path": path})
        return Response("refused", status_code=status)

    app.state.openai_serving_score = SimpleNamespace(handle_request=handle_request)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        body = {"query": "q", "items": ["i"], "label_token_ids": [1]}
        response = await client.post(own_routes.EXPLAIN_PATH, json=body)
    assert response.status_code == status
    assert (response.json() if status == 200 else response.text) == answer
