"""A half-precision model, with requests whose numbers exceed its range."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tests.integration.support.client import Json, score_body
from tests.integration.support.override_bodies import PLACEHOLDER
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.processes import held_back

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

FLAGS = (
    *("--enable-prefill-only", "--dtype", "float16", "--prefill-only-known-answers", "off"),
    *("--prefill-only-launch-tokens", "4096"),  # what waits together shares a forward
)
HIDDEN = 128
HUGE = 4_321
LARGE = 6e4
"""Finite in float16; the model doubles its embeddings."""

TOLERANCE = 2e-2
QUERY = score_body(7, 80, [1])["query"]


@pytest.fixture(scope="module")
def granite(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    """A model with a token whose embedding is `LARGE`."""
    model = tmp_path_factory.mktemp("model") / "granite"
    shutil.copytree(model_dir("granite"), model)
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][HUGE] = LARGE
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with serving(model, "not_finite", *FLAGS) as running:
        yield running


def three_items(token: int, item: int = 1) -> Json:
    """A call with one token in one of its items that no other call has."""
    body = score_body(8, 1, [3, 4, 5]) | {"query": QUERY}
    body["items"][item][1] = token
    return body


def overridden(number: float, item: int = 1) -> Json:
    """The same call with an embedding of such numbers."""
    data = base64.b64encode(np.full((1, HIDDEN), number, np.float32).tobytes()).decode()
    own: list[Any] = [None] * 3
    own[item] = {"dtype": "float32", "shape": [1, HIDDEN], "data": data}
    placed = {"embed_override_token_id": PLACEHOLDER, "item_embed_overrides": own}
    return three_items(PLACEHOLDER, item) | placed


def assert_close(found: Json, wanted: Json) -> None:
    """Nulls are in the same places, too."""
    for name in ("scores", "token_logprobs"):
        one, other = (np.array(answer[name], dtype=float) for answer in (found, wanted))
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("stock", [False, True], ids=["packed", "stock"])
def test_what_the_precision_cannot_hold_is_refused_on_both_paths(
    granite: Serving, stock: bool
) -> None:
    refused = granite.client.post("/v1/score", overridden(-65_520), stock=stock)
    assert refused.status_code == 400, refused.text
    message = refused.json()["message"]
    assert "overrides" in message
    assert "beyond float16, in which the model computes: -65520.0. Send finite" in message


def test_who_alone_gives_nan_is_answered_as_by_stock(granite: Serving) -> None:
    """The other items of the same call get numbers."""
    client = granite.client
    with client.counting() as moved:
        found = client.score(three_items(HUGE))
    assert moved["frontend.fallbacks.not_finite"] == 1
    assert moved["scheduler.requests.not_finite"] == 1
    assert_close(found, client.score(three_items(HUGE), stock=True))
    assert [None in row for row in found["token_logprobs"]] == [False, True, False]
    with client.counting() as moved:
        client.score(three_items(HUGE + 1))
    assert moved["frontend.requests.packed"] == 1


def test_embeddings_that_give_nan_are_answered_and_never_reach_the_stock_path(
    granite: Serving,
) -> None:
    """SGLang takes no embeddings for this model; on the stock path its scheduler would end."""
    with granite.client.counting() as moved:
        found = granite.client.score(overridden(LARGE))
    assert moved["frontend.requests.packed"] == 1
    assert found["token_logprobs"][1] == [None] * 4


def test_nobody_else_gets_nan_nor_finds_it_in_the_cache(granite: Serving) -> None:
    client = granite.client
    others = [score_body(seed, 1, [2, 3]) | {"query": QUERY} for seed in (21, 22)]
    wanted = [client.score(body, stock=True) for body in others]
    client.flush()
    bodies = [others[0], overridden(LARGE), three_items(HUGE), others[1]]
    with client.counting() as moved, ThreadPoolExecutor(16) as pool:
        with held_back(granite.server, client, pool, bodies) as replies:
            pass
        first, _, _, second = (reply.result() for reply in replies)
    assert moved["scheduler.requests.ok"] == 3
    assert moved["scheduler.requests.not_finite"] == moved["scheduler.retried_forwards"] == 1
    again = [client.score(body) for body in others]
    for found, right in zip([first.json(), second.json(), *again], wanted * 2, strict=True):
        assert_close(found, right)
