"""A prefill server of a disaggregated pair, which has event loops of its own.

Requests of the pair name their peer; these name SGLang's own stand-in for one, with which it also
warms up: their K/V goes nowhere.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sglang_prefill_ext.frontend.options import TIMEOUT_HEADER
from sglang_prefill_ext.process.ports import free_port
from tests.integration.support.client import Client, Json, random_ids, score_body
from tests.integration.support.own_server import serving
from tests.integration.support.parity import TOLERANCE, assert_same
from tests.integration.support.reference import Reference

pytestmark = pytest.mark.timeout(900)

TIMEOUT_MS = 8_000
FLAGS = ("--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "mooncake_tcp")
NOWHERE = {"bootstrap_host": "2.2.2.2"}


@pytest.fixture(scope="module")
def client(model_dir: Callable[[str], Path]) -> Iterator[Client]:
    port = ("--disaggregation-bootstrap-port", str(free_port()))  # which has a default
    flags = ("--enable-prefill-only", "--schedule-policy", "srpt", *FLAGS, *port)
    flags += ("--prefill-only-timeout-ms", str(TIMEOUT_MS))
    with serving(model_dir("micro"), "prefill_server", *flags) as running:
        yield running.client


def of_the_pair(room: int, ids: list[int], **fields: object) -> Json:
    """A generation that a decode server would continue."""
    sampling = {"max_new_tokens": 8, "temperature": 0}
    body = {"input_ids": ids, "sampling_params": sampling, "bootstrap_room": room}
    return body | NOWHERE | fields


@pytest.mark.patch("P17")
@pytest.mark.parametrize(("prefix", "suffixes"), [(40, [3] * 20), (0, [5, 9, 2]), (700, [30] * 4)])
def test_scores_are_those_of_the_model(
    client: Client, reference: Reference, prefix: int, suffixes: list[int]
) -> None:
    body = score_body(prefix, prefix, suffixes)
    with client.counting() as moved:
        answer = client.score(body)
    assert moved["frontend.requests.packed"] == 1
    assert not any(count for name, count in moved.items() if "fallbacks" in name)
    wanted = reference.logprobs(body, list(range(len(suffixes))))
    assert np.abs(np.array(answer["token_logprobs"]) - wanted).max() < TOLERANCE


def test_log_probs_and_a_token_are_those_of_its_own_prefill(client: Client) -> None:
    ids = random_ids(random.Random(3), 50)
    wants = {"return_logprob": True, "logprob_start_len": 30, "top_logprobs_num": 2}
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}} | wants
    with client.counting() as moved:
        packed = client.post("/generate", body).json()
    assert moved["frontend.requests.packed"] == 1
    own = client.post("/generate", of_the_pair(1, ids, **wants)).json()
    assert packed["output_ids"] == own["output_ids"]
    for name in ("input_token_logprobs", "input_top_logprobs", "output_token_logprobs"):
        assert_same(packed["meta_info"][name], own["meta_info"][name], name)


def test_requests_of_the_pair_are_sglangs(client: Client) -> None:
    ids = random_ids(random.Random(4), 20)
    one_token = {"sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    with client.counting() as moved:
        assert client.post("/generate", of_the_pair(2, ids, **one_token)).status_code == 200
    assert moved["frontend.requests.packed"] == 0
    assert moved["frontend.fallbacks.disaggregation"] == 1


def test_what_has_to_be_decoded_wants_a_peer(client: Client) -> None:
    """SGLang refuses it, because nothing on a prefill server could serve it."""
    body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 8}}
    answer = client.post("/generate", body)
    assert answer.status_code == 400
    assert "without bootstrap room id" in answer.text


def test_the_servers_timeout_is_for_requests_without_one(client: Client) -> None:
    """While the engine is paused, requests can only expire."""
    body = score_body(6, 20, [3, 5])
    with client.counting() as moved, ThreadPoolExecutor(2) as pool:
        assert client.post("/pause_generation", {"mode": "in_place"}).status_code == 200
        begun = time.monotonic()
        long = {TIMEOUT_HEADER: "600000"}
        patient = pool.submit(client.http.post, "/v1/score", json=body, headers=long)
        plain = pool.submit(client.post, "/v1/score", body)
        assert plain.result().status_code == 504
        assert time.monotonic() - begun >= TIMEOUT_MS / 1e3
        assert not patient.done()
        assert client.post("/continue_generation", {}).status_code == 200
        assert patient.result().status_code == 200
    assert moved["frontend.requests.expired"] == 1


def test_both_kinds_at_once_leave_nothing_behind(client: Client) -> None:
    rng = random.Random(5)
    scoring = [score_body(seed, 60, [4] * 10) for seed in range(20)]
    prefills = [of_the_pair(100 + room, random_ids(rng, 40)) for room in range(20)]
    client.flush()
    before = client.memory()
    with client.counting() as moved, ThreadPoolExecutor(8) as pool:
        scores = [pool.submit(client.score, body) for body in scoring]
        tokens = [pool.submit(client.post, "/generate", body) for body in prefills]
        assert all(len(answer.result()["scores"]) == 10 for answer in scores)
        assert all(answer.result().json()["output_ids"] for answer in tokens)
    assert moved["frontend.requests.packed"] == len(scoring)
    client.flush()
    client.assert_memory_returns_to(before)
