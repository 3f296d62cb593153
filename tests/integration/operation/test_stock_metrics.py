"""Packed requests in SGLang's own metrics: counted as SGLang counts the requests it serves."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TypeAlias

import pytest

from sglang_prefill_ext.frontend.options import KEEP_PREFIX_HEADER
from sglang_prefill_ext.local_server import LocalServer
from tests.integration.support.client import (
    LABELS,
    OPT_OUT,
    Client,
    Json,
    random_ids,
    score_body,
    wait_until,
)
from tests.integration.support.processes import begun, scheduler_pid, stopped, take_turns
from tests.integration.support.stock_metrics import counts, growth, scraped

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

BODY = score_body(911, 40, [3, 7, 1])
Request: TypeAlias = tuple[str, Json]


def _score(rng: random.Random) -> Request:
    query, *items = (random_ids(rng, length) for length in (40, 3, 170, 1))
    return "/v1/score", {"query": query, "items": items, "label_token_ids": LABELS}


def _token(rng: random.Random) -> Request:
    sampling = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
    return "/generate", {"input_ids": random_ids(rng, 120), "sampling_params": sampling}


def _log_probs(rng: random.Random) -> Request:
    prompts = [random_ids(rng, length) for length in (30, 350)]
    body = {"sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
    return "/generate", body | {"input_ids": prompts, "logprob_start_len": 0}


def _completion(rng: random.Random) -> Request:
    body = {"model": "micro", "max_tokens": 1, "temperature": 0}
    return "/v1/completions", body | {"prompt": [random_ids(rng, length) for length in (20, 99)]}


@pytest.mark.parametrize("request_of", [_score, _token, _log_probs, _completion])
def test_sglangs_metrics_grow_as_on_the_stock_path(
    client: Client, request_of: Callable[[random.Random], Request]
) -> None:
    grown = []
    for seed, headers in ((1, {}), (2, OPT_OUT)):
        path, body = request_of(random.Random(f"{request_of.__name__} {seed}"))
        with client.counting() as moved, growth(client) as more:
            assert client.http.post(path, json=body, headers=headers).status_code == 200
        assert bool(moved["frontend.requests.packed"]) == (not headers)
        grown.append(more)
    packed, stock = grown
    assert packed == stock


def _named_token(rng: random.Random) -> Request:
    """A request for which SGLang keeps a record of its own."""
    path, body = _token(rng)
    return path, body | {"rid": f"request-{rng.random()}"}


@pytest.mark.parametrize("request_of", [_token, _named_token, _log_probs])
def test_answers_tell_when_what_happened(
    client: Client, request_of: Callable[[random.Random], Request]
) -> None:
    path, body = request_of(random.Random(f"times of {request_of.__name__}"))
    with client.counting() as moved:
        packed, stock = (client.post(path, body, stock=off).json() for off in (False, True))
    assert moved["frontend.requests.packed"]
    of_packed, of_stock = (
        (each[0] if isinstance(each, list) else each)["meta_info"] for each in (packed, stock)
    )
    assert list(of_packed) == list(of_stock)
    assert 0 <= of_packed["queue_time"] < of_packed["e2e_latency"]
    stages = [
        *("request_received_ts", "api_server_dispatch_finish_ts", "forward_entry_time"),
        *("prefill_finished_time", "request_finished_ts", "response_sent_to_client_ts"),
    ]
    assert sorted(stages, key=of_packed.__getitem__) == stages


def test_cached_tokens_are_counted_as_on_the_stock_path(client: Client) -> None:
    rng = random.Random("cached")
    query = random_ids(rng, 300)
    client.generate(query, 1, stock=True)  # leaves it in the prefix cache
    grown = []
    for headers in ({}, OPT_OUT):
        items = [random_ids(rng, length) for length in (4, 9)]
        body = {"query": query, "items": items, "label_token_ids": LABELS}
        with growth(client) as more:
            assert client.http.post("/v1/score", json=body, headers=headers).status_code == 200
        grown.append(more)
    packed, stock = grown
    assert packed == stock
    assert sum(more for (name, _), more in packed.items() if "cached_tokens" in name) >= 600


@pytest.mark.parametrize("headers", [{}, OPT_OUT], ids=["packed", "stock"])
def test_prompts_of_a_client_that_leaves_are_counted_as_aborted(
    server: LocalServer, client: Client, headers: dict[str, str]
) -> None:
    def aborted() -> float:
        return sum(more for (name, _), more in counts(client).items() if "aborted" in name)

    def leaves_and_is_counted() -> bool:
        """Whether the prompts counted as aborted; not if the client left before they were known."""
        before = aborted()
        with closing(begun(client, "/v1/score", BODY, headers)):
            take_turns(client)
        with suppress(AssertionError):
            wait_until(lambda: aborted() - before == len(BODY["items"]), timeout_s=10)
            return True
        return False

    with stopped(scheduler_pid(server)):
        wait_until(leaves_and_is_counted)
    client.flush()  # until nothing of them runs, on either path


def test_tokens_of_packed_forwards_are_counted_by_the_scheduler(client: Client) -> None:
    def tokens() -> dict[str, float]:
        samples = scraped(client, {"sglang:realtime_tokens_total"})
        return {dict(labels)["mode"]: value for (_, labels), value in samples.items()}

    before = tokens()
    with client.counting() as moved:
        for headers in ({KEEP_PREFIX_HEADER: "on"}, {}):
            body = score_body(912, 400, [3, 7])
            client.http.post("/v1/score", json=body, headers=headers).raise_for_status()
    after = tokens()
    for mode, total in (("prefill_compute", "computed"), ("prefill_cache", "cached")):
        assert after[mode] - before.get(mode, 0) == moved[f"scheduler.tokens_{total}"] > 0
