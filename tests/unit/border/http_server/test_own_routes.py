"""Our routes, behind SGLang's own check of keys."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.metrics import FrontendMetrics

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's, about kernels that this machine lacks
    from sglang.srt.utils.auth import add_api_key_middleware

    from sglang_prefill_ext.border.http_server import own_routes


async def scheduler_status() -> list[Any]:
    return [{"dp_rank": 0}]


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
    server = SimpleNamespace(validate_json_request=lambda: None)
    monkeypatch.setitem(sys.modules, own_routes.SERVER_MODULE, server)
    # uvicorn's own class stays as it is
    monkeypatch.setattr(own_routes, "find_spec", lambda _: None)
    frontend: Any = SimpleNamespace(
        config=PrefillOnlyConfig(),
        exchange=SimpleNamespace(in_flight=0),
        metrics=FrontendMetrics(None),
    )
    link: Any = SimpleNamespace(
        scheduler_status=scheduler_status, texts=SimpleNamespace(status=dict)
    )
    app = FastAPI()
    own_routes.add_routes(app, frontend, link, None)
    add_api_key_middleware(app, **{"api_key": None, "admin_api_key": None} | keys)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        for key in ("", "user", "admin"):
            headers = {"authorization": f"Bearer {key}"}
            response = await client.get(own_routes.STATUS_PATH, headers=headers)
            assert response.status_code == (200 if key in opens else 401), key
            if key in opens:
                assert response.json()["schedulers"] == [{"dp_rank": 0}]
