"""Plain bodies are answered at the route; what SGLang serves gets a body that it can read."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from sglang_prefill_ext.border.http_server.own_routes import EXPLAIN_PATH
from sglang_prefill_ext.border.http_server.packed_routes import shorten_routes
from sglang_prefill_ext.border.tokenizer_manager.call_context import call_with
from sglang_prefill_ext.border.tokenizer_manager.call_records import CallRecords
from sglang_prefill_ext.border.tokenizer_manager.override_hooks import call_of
from sglang_prefill_ext.border.tokenizer_manager.server import PrefillServer
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.frontend.score.score_frontend import ScoreFrontend
from tests.unit.frontend.links import StubLink, answer_at_once, path_of, stub_answer

PATHS = ("/v1/score", "/v1/decisions", EXPLAIN_PATH)
PLAIN = {"query": [1, 2], "items": [[3], [4, 5]], "label_token_ids": [7]}


def base64_of(*ids: int) -> str:
    return base64.b64encode(np.array(ids, "<i4").tobytes()).decode()


ARRAYS = PLAIN | {
    "query": {"values": base64_of(1, 2)},
    "items": {"values": base64_of(3, 4, 5), "counts": base64_of(1, 2)},
}
ROW = base64.b64encode(np.array([[0.5] * 4], np.float32).tobytes()).decode()
EMBEDDINGS = {"dtype": "float32", "shape": [1, 4], "data": ROW}


class Setup:
    """The routes before a scheduler that answers with -1; SGLang's own tell what they got."""

    def __init__(self, *, logs: bool = False) -> None:
        self.link, self.app = StubLink(), FastAPI()
        self.path = path_of(self.link)
        answer_at_once(self.link, self.path.exchange, lambda rows: stub_answer(values=[-1.0, -1.0]))
        switches = "enable_metrics enable_trace dump_requests_folder crash_dump_folder"
        manager = SimpleNamespace(
            **dict.fromkeys(switches.split()),
            is_generation=True,
            rid_to_state={},
            request_logger=SimpleNamespace(
                log_requests=logs, log_requests_level=2, log_finished_request=lambda *_, **__: None
            ),
            request_metrics_exporter_manager=SimpleNamespace(exporter_enabled=lambda: False),
        )
        parts: Any = (manager, self.path, self.link, ScoreFrontend(self.path), CallRecords(manager))
        nothing: Any = None
        for path in PATHS:
            self.app.add_api_route(path, self.stock, methods=["POST"])
        self.app.state.openai_serving_score = SimpleNamespace(
            create_error_response=lambda message, *_: JSONResponse(message, 400)
        )
        shorten_routes(self.app, PrefillServer(*parts, gc=nothing))

    async def stock(self, request: Request) -> Any:
        context = call_with(request)
        taken = ""
        try:
            context.raise_if_taken()
        except StockPathTaken as why:
            taken = why.reason
        call = call_of(ScoreCall(items=[[3], [4, 5]]), context)
        embeddings = [
            name
            for name, value in call.arguments().items()
            if "embed" in name and value is not None
        ]
        return {"stock": await request.json(), "taken": taken, "embeddings": embeddings}

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            response = await client.post(path, json=body, headers=headers)
        assert response.headers["x-prefill-only-arrays"] == "int32"
        return response


@pytest.mark.parametrize("body", [PLAIN, ARRAYS], ids=["lists", "arrays"])
async def test_plain_bodies_are_answered_at_the_route(body: dict[str, Any]) -> None:
    setup = Setup()
    answer = (await setup.post("/v1/score", body)).json()
    assert answer["scores"] == [[pytest.approx(np.exp(-1))]] * 2
    assert answer["usage"]["prompt_tokens"] == 7
    assert setup.path.metrics.as_dict()["requests"] == {"packed": 1}


@pytest.mark.parametrize("body", [PLAIN, ARRAYS], ids=["lists", "arrays"])
@pytest.mark.parametrize(
    ("path", "logs", "headers", "taken"),
    [
        ("/v1/score", False, {"x-prefill-only": "off"}, "opted_out"),
        ("/v1/score", True, {}, ""),
        ("/v1/decisions", False, {}, ""),
        (EXPLAIN_PATH, False, {}, ""),
    ],
)
async def test_what_sglang_serves_has_lists(
    path: str, logs: bool, headers: dict[str, str], taken: str, body: dict[str, Any]
) -> None:
    setup = Setup(logs=logs)
    answer = (await setup.post(path, body, **headers)).json()
    assert answer == {"stock": PLAIN, "taken": taken, "embeddings": []}
    assert setup.path.metrics.as_dict()["requests"] == {}
    assert setup.link.sent == []


async def test_embeddings_leave_the_body_and_join_the_call() -> None:
    query = {"query_embed_overrides": EMBEDDINGS}
    answer = (await Setup().post("/v1/score", ARRAYS | query)).json()
    assert answer == {"stock": PLAIN, "taken": "", "embeddings": ["query_embed_overrides"]}
    decision = {"input": "i", "input_embed_overrides": EMBEDDINGS, "embed_override_token_id": 5}
    answer = (await Setup().post("/v1/decisions", decision)).json()
    assert answer["stock"] == {"input": "i"}
    assert answer["embeddings"] == ["embed_override_token_id", "item_embed_overrides"]


@pytest.mark.parametrize(
    "fields",
    [
        {"query_embed_overrides": EMBEDDINGS | {"shape": [3]}},
        {"query": [1]},
        {"items": ARRAYS["items"] | {"counts": base64_of(9)}},
    ],
)
async def test_what_is_malformed_is_refused_and_counted(fields: dict[str, Any]) -> None:
    setup = Setup()
    assert (await setup.post("/v1/score", ARRAYS | fields)).status_code == 400
    assert setup.path.metrics.as_dict()["requests"] == {"refused": 1}
