"""The plugin is installed but not enabled: no hook, and the same bytes as without it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.support.client import Client, random_ids, score_body
from tests.integration.support.own_server import run_script, serving

pytestmark = pytest.mark.timeout(900)

WITHOUT_US = {"SGLANG_PLUGINS": "prefill_cpu,smg-servicer,smg-zmq"}
"""SGLang loads the plugins named here: all but ours. Without the CPU platform nothing starts."""
SAME_ORDER = {"PYTHONHASHSEED": "0"}
"""FastAPI names routes with several methods after the first of a set."""
OURS_ALONE = {"SGLANG_PLUGINS": "prefill_only,prefill_cpu"}

RANDOM_FIELDS = re.compile(
    rb'"(id|created|e2e_latency|decode_throughput|[a-z_]*(?:time|latency|_ts))":("[^"]*"|[\d.e+-]+)'
)
RANDOM_HEADERS = {"date", "x-request-id"}


def requests() -> dict[str, tuple[str, str, Any]]:
    """Method, path and body of the requests to both servers, in this order."""
    ids = random_ids(random.Random(3), 12)
    greedy = {"max_new_tokens": 12, "temperature": 0}
    text = {"query": "which is a fruit? ", "items": ["apple"], "label_token_ids": [5, 9]}
    wrong = {"query": [4], "items": [[5]], "label_token_ids": [8_000]}
    softmax = {"apply_softmax": True, "temperature": 0.5}
    completion = {"model": "default", "prompt": "to be or", "max_tokens": 8, "temperature": 0}
    return {
        "score": ("POST", "/v1/score", score_body(1, 40, [3] * 12)),
        "score-softmax": ("POST", "/v1/score", score_body(2, 10, [2, 9], **softmax)),
        "score-item-first": ("POST", "/v1/score", score_body(3, 10, [2, 9], item_first=True)),
        "score-text": ("POST", "/v1/score", text),
        "score-no-items": ("POST", "/v1/score", score_body(4, 10, [])),
        "score-wrong-label": ("POST", "/v1/score", wrong),
        "score-no-json": ("POST", "/v1/score", "no request"),
        "generate": ("POST", "/generate", {"input_ids": ids, "sampling_params": greedy}),
        "completions": ("POST", "/v1/completions", completion),
        "models": ("GET", "/v1/models", None),
        "routes": ("GET", "/openapi.json", None),
        "status": ("GET", "/prefill_only/status", None),
    }


def recorded(response: httpx.Response) -> tuple[int, dict[str, str], bytes]:
    headers = {k: v for k, v in response.headers.items() if k not in RANDOM_HEADERS}
    body = RANDOM_FIELDS.sub(rb'"\1":random', response.content)
    if body != response.content:
        del headers["content-length"]  # random fields differ in length
    return response.status_code, headers, body


def record(client: Client) -> dict[str, tuple[int, dict[str, str], bytes]]:
    return {
        name: recorded(client.http.request(method, path, json=body))
        for name, (method, path, body) in requests().items()
    }


Recording = dict[str, tuple[int, dict[str, str], bytes]]


@pytest.fixture(scope="module")
def recordings(model_dir: Callable[[str], Path]) -> tuple[Recording, Recording]:
    """Answers of a server with the plugin installed, and of one that never loads it."""
    model = model_dir("micro")
    name = ("--served-model-name", "default")
    with serving(model, "flag_off", *name, env=SAME_ORDER) as running:
        off = record(running.client)
    with serving(model, "without_plugin", *name, env=SAME_ORDER | WITHOUT_US) as running:
        return off, record(running.client)


def test_the_other_server_lacks_only_our_plugin() -> None:
    groups = ("sglang.srt.platforms", "sglang.srt.plugins")
    installed = {plugin.name for group in groups for plugin in entry_points(group=group)}
    assert installed - set(WITHOUT_US["SGLANG_PLUGINS"].split(",")) == {"prefill_only"}


@pytest.mark.parametrize("name", requests())
def test_same_bytes(recordings: tuple[Recording, Recording], name: str) -> None:
    off, stock = recordings
    assert off[name] == stock[name]


def test_the_answers_are_what_was_asked_for(recordings: tuple[Recording, Recording]) -> None:
    statuses = {name: status for name, (status, _, _) in recordings[0].items()}
    assert statuses.pop("status") == 404
    assert statuses.pop("score-wrong-label") == 400
    assert 400 <= statuses.pop("score-no-json") < 500
    assert set(statuses.values()) == {200}
    for name in ("score", "score-softmax", "score-item-first", "score-text"):
        body = recordings[0][name][2]
        assert b"random" not in body
        assert json.loads(body)["scores"]


def test_only_flags_are_patched(model_dir: Callable[[str], Path]) -> None:
    flags = ("--model-path", model_dir("micro"), "--device", "cpu")
    report = json.loads(run_script("off_probe", *flags, env=OURS_ALONE).splitlines()[-1])
    assert report["applied"] == report["flags"]
    assert report["changed"] == report["flags"]
    assert report["carried"] == []
    assert report["same_routes"]
    assert report["same_http"]
