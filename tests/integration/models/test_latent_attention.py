"""A server whose model has latent attention: SGLang's pool keeps latents in place of K/V."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.support.client import Client, generate_body, random_ids, score_body
from tests.integration.support.own_server import serving
from tests.integration.support.parity import (
    assert_a_divided_request_agrees,
    assert_paths_agree,
    assert_returning_rows_agree,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

FLAGS = ("--enable-prefill-only", "--prefill-only-prefix-caching=always")
DIVIDING = ("--prefill-only-max-forward-tokens=64",)
PREFIX = 60


@pytest.fixture(scope="module")
def latent_client(model_dir: Callable[[str], Path]) -> Iterator[Client]:
    with serving(model_dir("deepseek-v3"), "latent", *FLAGS, *DIVIDING) as (_, client):
        yield client


@pytest.mark.patch("P65")
def test_the_known_answers_are_the_same(latent_client: Client) -> None:
    assert latent_client.scheduler()["known_answers"]["verdict"] == "same"


def test_latents_that_a_generation_has_left_are_read(latent_client: Client) -> None:
    body = score_body(1, PREFIX, [3, 1, 6])
    latent_client.generate(body["query"], 1, stock=True)
    with latent_client.counting() as moved:
        assert_paths_agree(latent_client, body)
    assert moved["scheduler.tokens_cached"] == PREFIX


def test_latents_that_a_packed_request_has_left_continue_a_generation(
    latent_client: Client,
) -> None:
    ids = random_ids(random.Random(5), PREFIX)
    alone = latent_client.generate(ids, 4)
    latent_client.flush()
    body = {**score_body(2, 0, [3, 1]), "query": ids}
    assert_paths_agree(latent_client, body)
    latent_client.flush()
    latent_client.score(body)
    answer = latent_client.post("/generate", generate_body(ids, 4)).json()
    assert answer["meta_info"]["cached_tokens"] == PREFIX - 1  # SGLang computes the last one
    assert answer["output_ids"] == alone


def test_latents_of_rows_that_return_are_read(latent_client: Client) -> None:
    assert_returning_rows_agree(latent_client, item=40)


def test_a_divided_request_reads_its_own_latents(latent_client: Client) -> None:
    assert_a_divided_request_agrees(latent_client)
