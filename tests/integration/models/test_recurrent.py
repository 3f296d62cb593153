"""Servers whose models have recurrent layers, which carry a state along a prompt."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.support.adapters import make_adapter
from tests.integration.support.client import Client, random_ids, score_body
from tests.integration.support.own_server import serving
from tests.integration.support.parity import (
    TOLERANCE,
    assert_a_divided_request_agrees,
    assert_paths_agree,
    assert_same,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

FLAGS = ("--enable-prefill-only", "--prefill-only-max-forward-tokens=64")
EXACT = {"SGLANG_MAMBA_CONV_DTYPE": "float32"}
"""SGLang keeps the last inputs of a convolution in bfloat16, whatever the dtype of the model."""
OVERLAP = ("--disable-radix-cache",)
NORMAL = ("--mamba-radix-cache-strategy=no_buffer", "--disable-overlap-schedule")
"""On a CPU SGLang keeps states of prefixes only without overlap."""
SERVERS = {
    "delta-rule-overlap": ("qwen3.5", OVERLAP),
    "delta-rule-normal": ("qwen3.5", NORMAL),
    "state-space-overlap": ("granite4", OVERLAP),
    "state-space-normal": ("granite4", NORMAL),
    "convolution-overlap": ("lfm2", OVERLAP),
}
ADAPTED = {
    "qwen3.5": ("o_proj", "gate_proj", "up_proj", "down_proj"),
    "granite4": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "lfm2": ("q_proj", "k_proj", "v_proj"),
}
"""Linear maps for which SGLang takes adapters. Of queries with gates it knows the size in models
that read images only, and of recurrent layers neither."""


@pytest.fixture(scope="module", params=SERVERS)
def recurrent_client(
    model_dir: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Client]:
    preset, flags = SERVERS[request.param]
    name, directory = f"recurrent-{request.param}", tmp_path_factory.mktemp(request.param)
    adapter = make_adapter("a", model_dir(preset), directory, rank=4, maps=ADAPTED[preset])
    flags = (*FLAGS, *flags, *adapter.flags)
    with serving(model_dir(preset), name, *flags, env=EXACT) as (_, client):
        yield client


@pytest.mark.patch("P66", "P68", "P69", "P70", "P71", "P72", "P74")
def test_the_known_answers_are_the_same(recurrent_client: Client) -> None:
    assert recurrent_client.scheduler()["known_answers"]["verdict"] == "same"


def test_rows_start_from_the_state_of_their_prefix(recurrent_client: Client) -> None:
    with recurrent_client.counting() as moved:
        assert_paths_agree(recurrent_client, score_body(1, 20, [3, 1, 6, 11]))
    assert moved["scheduler.forwards"] == 1


def test_a_divided_request_goes_on_from_the_state_of_its_prefix(recurrent_client: Client) -> None:
    assert_a_divided_request_agrees(recurrent_client)


def test_requests_at_once_keep_their_states_apart(recurrent_client: Client) -> None:
    bodies = [score_body(seed, 3 + 40 * seed, [2, 9, 5]) for seed in range(4)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        found = list(pool.map(recurrent_client.score, bodies))
    for answer, body in zip(found, bodies, strict=True):
        assert_same(answer, recurrent_client.score(body, stock=True))


def test_an_adapter_makes_stocks_log_probs_and_leaves_other_requests_alone(
    recurrent_client: Client,
) -> None:
    rng = random.Random(11)
    prefix = random_ids(rng, 40)
    prompts = [prefix + random_ids(rng, length) for length in (1, 9, 20, 15)]
    body = {"input_ids": prompts, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    body |= {"return_logprob": True, "token_ids_logprob": [7, 9]}
    named = body | {"lora_path": "a"}
    with recurrent_client.counting() as moved:
        found = [recurrent_client.post("/generate", each).json() for each in (body, named) * 2]
    assert moved["frontend.requests.packed"] == 4 * len(prompts)
    assert moved["scheduler.forwards"] > 4
    wanted = [recurrent_client.post("/generate", each, stock=True).json() for each in (body, named)]
    assert_same(found, wanted * 2)
    label = "output_token_ids_logprobs"
    base, adapted = (answers[0]["meta_info"][label][0][0][0] for answers in wanted)
    assert abs(adapted - base) > 100 * TOLERANCE


@pytest.mark.patch("P67", "P73")
def test_a_generation_goes_on_beside_scores(recurrent_client: Client) -> None:
    ids = random_ids(random.Random(5), 70)
    alone = recurrent_client.generate(ids, 6)
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(recurrent_client.generate, ids, 6)
        assert_paths_agree(recurrent_client, score_body(4, 30, [3, 1]))
        assert beside.result() == alone
