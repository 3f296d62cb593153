"""Two tensor-parallel ranks make the same decisions and together the right numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sglang_prefill_ext.modelmaker.preset import VOCABULARY
from tests.integration.support.adapters import make_adapter
from tests.integration.support.client import Client, random_ids, score_body
from tests.integration.support.generation import assert_generation_is_undisturbed
from tests.integration.support.own_server import TWO_RANKS, serving
from tests.integration.support.parity import (
    TOLERANCE,
    assert_paths_agree,
    assert_returning_rows_agree,
    assert_same_answer,
    assert_tokens_agree,
    both,
)

pytestmark = pytest.mark.timeout(900)

MAX_FORWARD_TOKENS = 256
BORDER = [0, VOCABULARY // 2 - 1, VOCABULARY // 2, VOCABULARY - 1]


@pytest.fixture(scope="module")
def client(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("adapters")
    adapter = make_adapter("an-adapter", model_dir("micro"), directory, rank=4)
    flags = ("--enable-prefill-only", "--tp-size", "2", *adapter.flags)
    budget = ("--prefill-only-max-forward-tokens", str(MAX_FORWARD_TOKENS))
    model = model_dir("micro")
    with serving(model, "tensor_parallel", *flags, *budget, env=TWO_RANKS) as running:
        yield running.client


@pytest.fixture(scope="module")
def kernel_client(model_dir: Callable[[str], Path]) -> Iterator[Client]:
    """A client of a server with two ranks whose kernels run in the interpreter, also in graphs."""
    flags = ("--enable-prefill-only", "--tp-size", "2", "--prefill-only-attention", "fused")
    budget = ("--prefill-only-max-forward-tokens", "64", "--prefill-only-cuda-graphs", "64")
    env = TWO_RANKS | {"TRITON_INTERPRET": "1"}
    with serving(model_dir("micro"), "tensor_parallel_kernels", *flags, *budget, env=env) as own:
        yield own.client


@pytest.mark.parametrize(
    ("prefix", "suffixes"), [(40, [3] * 20), (0, [5, 9, 2]), (12, [1]), (60, [40, 1, 7])]
)
def test_packed_and_stock_agree(client: Client, prefix: int, suffixes: list[int]) -> None:
    assert_paths_agree(client, score_body(prefix, prefix, suffixes))


def test_labels_are_read_from_the_part_of_the_vocabulary_that_a_rank_has(
    kernel_client: Client,
) -> None:
    """With and without a pass over the vocabulary; labels at the border of the two parts."""
    before = kernel_client.scheduler()["graphs"]["forwards"].get("graph", 0)
    for whole in (True, False):
        body = score_body(5, 20, [3, 1, 7], label_token_ids=BORDER, return_token_logprobs=whole)
        assert_paths_agree(kernel_client, body | {"apply_softmax": not whole})
    assert kernel_client.scheduler()["graphs"]["forwards"]["graph"] == before + 2
    assert_tokens_agree(kernel_client, 6)


def test_log_probs_and_tokens_agree(client: Client) -> None:
    with client.counting() as moved:
        assert_tokens_agree(client, seed=1)
    assert moved["frontend.requests.packed"] == 2


def test_adapters_agree(client: Client) -> None:
    prompts = [random_ids(random.Random(4), length) for length in (3, 20)]
    body = {"input_ids": prompts, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    body |= {"return_logprob": True, "token_ids_logprob": [7]}
    plain = both(client, "/generate", body, packed_requests=2)
    adapted = both(client, "/generate", body | {"lora_path": "an-adapter"}, packed_requests=2)
    of_label = "output_token_ids_logprobs"
    for one, other in zip(plain, adapted, strict=True):
        (((a, *_),),), (((b, *_),),) = (each["meta_info"][of_label] for each in (one, other))
        assert abs(a - b) > 100 * TOLERANCE


def test_draws_leave_the_random_numbers_of_both_ranks_in_step(client: Client) -> None:
    """Ranks that drew different tokens would go on with different texts, and be wrong together."""
    rng = random.Random(3)
    drawn = {"max_new_tokens": 1, "temperature": 1.5, "top_k": 50}
    prompts = [random_ids(rng, 12) for _ in range(9)]
    with client.counting() as moved:
        client.post("/generate", {"input_ids": prompts, "sampling_params": drawn})
    assert moved["frontend.requests.packed"] == len(prompts)
    prompt, log_probs = prompts[0], {"return_logprob": True}
    long = {"max_new_tokens": 24, "temperature": 1.0, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": long} | log_probs
    generated = client.post("/generate", body).json()
    body = {"input_ids": prompt + generated["output_ids"], "logprob_start_len": len(prompt) - 1}
    body |= {"sampling_params": {"max_new_tokens": 0}} | log_probs
    read = client.post("/generate", body, stock=True).json()["meta_info"]["input_token_logprobs"]
    values = [value for value, _, _ in generated["meta_info"]["output_token_logprobs"]]
    assert values == pytest.approx([value for value, _, _ in read[1:]], abs=1e-4)


def test_a_request_over_the_budget(client: Client) -> None:
    body = score_body(1, prefix=2 * MAX_FORWARD_TOKENS + 10, suffixes=[30] * 20)
    with client.counting() as moved:
        assert_paths_agree(client, body)
    assert moved["scheduler.forwards"] >= 5
    computed = moved["scheduler.tokens_computed"] + moved["scheduler.tokens_cached"]
    assert computed == 2 * MAX_FORWARD_TOKENS + 10 + 30 * 20


def test_both_ranks_find_rows_that_return(client: Client) -> None:
    assert client.scheduler()["launch_tokens"] < 16 * 240
    assert_returning_rows_agree(client, item=240)


def test_concurrent_requests(client: Client) -> None:
    bodies = [score_body(seed, 10 * seed, [1 + seed % 7] * 9) for seed in range(24)]
    with client.counting() as moved, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client.score, bodies))
    assert moved["frontend.requests.packed"] == len(bodies)
    assert moved["scheduler.requests.ok"] == len(bodies)
    assert moved["frontend.requests.stock"] == 0
    for body, answer in zip(bodies, answers, strict=True):
        assert_same_answer(answer, client.score(body, stock=True))


def test_generation_beside_scoring(client: Client) -> None:
    bodies = [score_body(seed, 100, [20] * 10) for seed in range(12)]
    assert_generation_is_undisturbed(client, bodies, new_tokens=40)


def test_a_late_request_expires_on_both_ranks(client: Client) -> None:
    """Ranks that ended different requests would wait for each other for ever."""
    late = {"x-prefill-only-timeout-ms": "1"}
    bodies = [score_body(seed, 60, [20] * 40) for seed in range(12)]
    with client.counting() as moved, ThreadPoolExecutor(12) as pool:
        replies = [
            pool.submit(client.http.post, "/v1/score", json=body, headers=late if seed % 2 else {})
            for seed, body in enumerate(bodies)
        ]
        statuses = [reply.result().status_code for reply in replies]
    assert set(statuses[::2]) == {200}
    assert set(statuses[1::2]) <= {200, 504}
    assert moved["scheduler.requests.expired"] == statuses.count(504) > 0
    assert_paths_agree(client, bodies[0])


def test_both_ranks_report_their_garbage_collection(client: Client) -> None:
    reports = client.collect_garbage("collect")
    assert [each["role"] for each in reports] == ["detokenizer", *["scheduler"] * 2, "tokenizer"]
    assert len({each["pid"] for each in reports}) == 4
    assert all(each["pauses"]["count"] > 0 for each in reports)
