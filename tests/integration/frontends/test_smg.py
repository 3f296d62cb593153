"""SMG, the gateway that SGLang's documentation names, in front of a server with the plugin."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from sglang_prefill_ext.local_server import LocalServer
from sglang_prefill_ext.process.ports import free_port
from tests.integration.support.client import (
    LABELS,
    Client,
    Json,
    random_ids,
    score_body,
    wait_until,
)
from tests.integration.support.own_server import LOGS
from tests.integration.support.parity import assert_same

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

RNG = random.Random(9)
GREEDY = {"temperature": 0, "max_new_tokens": 1}
PROMPTS = [random_ids(RNG, length) for length in (20, 31)]
LABEL_LOGPROBS: Json = {
    "input_ids": PROMPTS,
    "sampling_params": GREEDY,
    "return_logprob": True,
    "token_ids_logprob": LABELS,
}
CHAT: Json = {"messages": [{"role": "user", "content": "Is it so?"}], "max_tokens": 1}
PACKED = {
    "label log-probs": ("/generate", LABEL_LOGPROBS, 2),
    "a text": ("/generate", {"text": "Is it so?", "sampling_params": GREEDY}, 1),
    "completions": ("/v1/completions", {"prompt": ["a b", "a c"], "max_tokens": 1}, 2),
    "a chat": ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 3}, 1),
}
"""Path, body, and how many requests of SGLang it makes."""


class Gateway(NamedTuple):
    client: Client
    model: str


@pytest.fixture(scope="module")
def gateway(server: LocalServer, client: Client) -> Iterator[Gateway]:
    ports = [str(free_port()) for _ in range(2)]
    command = [sys.executable, "-m", "smg", "launch", "--worker-urls", server.base_url]
    command += ["--port", ports[0], "--prometheus-port", ports[1]]
    through = Client(f"http://127.0.0.1:{ports[0]}")
    model = client.http.get("/v1/models").json()["data"][0]["id"]

    def serves() -> bool:
        try:
            return through.post("/v1/completions", greedy("a b", model)).status_code == 200
        except httpx.TransportError:
            return False

    with (
        (LOGS / "smg.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
        through.http,
    ):
        try:
            wait_until(serves)
            yield Gateway(through, model)
        finally:
            process.terminate()


def without_times(answer: Any) -> Any:
    """An answer of this server, which exports metrics and so tells when what happened."""
    if isinstance(answer, list):
        return [without_times(each) for each in answer]
    meta = {k: v for k, v in answer.get("meta_info", {}).items() if not isinstance(v, float)}
    return answer | {"meta_info": meta}


def greedy(prompt: str, model: str) -> Json:
    return {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}


@pytest.mark.parametrize("kind", PACKED)
def test_requests_are_packed_with_the_same_answers(
    client: Client, gateway: Gateway, kind: str
) -> None:
    path, body, requests = PACKED[kind]
    body = {"model": gateway.model, "temperature": 0} | body
    with client.counting() as moved:
        through = gateway.client.post(path, body)
    assert through.status_code == 200, through.text
    assert moved["frontend.requests.packed"] == requests
    assert not any(count for name, count in moved.items() if "fallbacks" in name)
    stock = client.post(path, body, stock=True)
    assert_same(without_times(through.json()), without_times(stock.json()))


def test_it_has_no_scores_and_drops_the_plugins_headers(client: Client, gateway: Gateway) -> None:
    assert gateway.client.post("/v1/score", score_body(9, 20, [3, 5])).status_code == 404
    with client.counting() as moved:
        answer = gateway.client.post("/v1/completions", greedy("a b", gateway.model), stock=True)
    assert answer.status_code == 200, answer.text
    assert moved["frontend.requests.packed"] == 1
