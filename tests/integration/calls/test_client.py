"""The Python client against a real server: the numbers and errors of the raw HTTP API."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sglang_prefill_ext.cli import app
from sglang_prefill_ext.client import AsyncPrefillClient, Options, PrefillClient, Scores
from sglang_prefill_ext.errors import ServerRefusedError
from sglang_prefill_ext.local_server import LocalServer
from tests.integration.support.client import LABELS, Client, Json, random_ids, score_body
from tests.integration.support.parity import TOLERANCE

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

TEXT_BODY = {
    "query": "which one? ",
    "items": ["naïve café", "漢字", "b"],
    "label_token_ids": LABELS,
}
BODIES = [score_body(7, 40, [3, 12, 1, 30, 8]), TEXT_BODY]


def assert_same(found: Scores, raw: Json) -> None:
    np.testing.assert_allclose(found.scores, raw["scores"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(found.token_logprobs, raw["token_logprobs"], rtol=0, atol=TOLERANCE)
    assert found.prompt_tokens == raw["usage"]["prompt_tokens"]


def asked(body: Json) -> dict[str, Any]:
    """Arguments of `score` that ask for what a body asks for."""
    arguments = {name: body[name] for name in ("query", "items", "label_token_ids")}
    return arguments | {"return_token_logprobs": True}


@pytest.mark.parametrize("body", BODIES, ids=["ids", "texts"])
@pytest.mark.parametrize("softmax", [False, True])
async def test_scores_are_those_of_the_raw_api(
    server: LocalServer, client: Client, body: Json, softmax: bool
) -> None:
    flags: Json = {"apply_softmax": softmax, "item_first": True}
    if softmax:
        flags["temperature"] = 0.5
    raw = client.score(body | flags | {"return_token_logprobs": True})
    with PrefillClient(server.base_url, max_items_per_request=2) as sync:
        assert_same(sync.score(**asked(body), **flags), raw)
    async with AsyncPrefillClient(server.base_url, max_items_per_request=2) as aio:
        assert_same(await aio.score(**asked(body), **flags), raw)


def test_options_choose_the_path(server: LocalServer, client: Client) -> None:
    query, items = np.array(random_ids(random.Random(1), 20)), [[5, 6], [7]]
    with client.counting() as moved, PrefillClient(server.base_url) as sync:
        packed = sync.score(query, items, LABELS, options=Options(timeout_s=100, keep_prefix=True))
        stock = sync.score(query, items, LABELS, options=Options(stock=True))
    np.testing.assert_allclose(packed.scores, stock.scores, rtol=0, atol=TOLERANCE)
    assert moved["frontend.requests.packed"] == moved["frontend.fallbacks.opted_out"] == 1


def test_what_the_server_refuses_is_an_error_with_its_message(
    server: LocalServer, client: Client
) -> None:
    raw = client.post("/v1/score", {"query": "q", "items": ["a"], "label_token_ids": [8_000]})
    with PrefillClient(server.base_url) as sync:
        with pytest.raises(ServerRefusedError) as refused:
            sync.score("q", ["a"], [8_000], apply_softmax=False)
        assert refused.value.status == raw.status_code == 400
        assert refused.value.message == raw.json()["message"]
        assert sync.score("q", ["a"], [5]).scores.tolist() == [[1.0]]


def test_compare_asks_both_paths_and_finds_them_alike(
    server: LocalServer, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(body) + "\n" for body in BODIES))
    args = ["compare", str(file), "--url", server.base_url, "--tolerance", str(TOLERANCE)]
    with client.counting() as moved:
        result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    assert "Line 1 takes the packed path\n" in result.stdout
    assert moved["frontend.requests.packed"] == 1 + len(BODIES)
    assert moved["frontend.fallbacks.opted_out"] == len(BODIES)
