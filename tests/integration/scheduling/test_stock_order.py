"""``--schedule-policy srpt`` for stock requests, on a server with small prefill batches."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from sglang_prefill_ext.local_server import LocalServer
from tests.integration.support.client import (
    OPT_OUT,
    Client,
    generate_body,
    random_ids,
    score_body,
    wait_until,
)
from tests.integration.support.own_server import Serving, run_forked, run_script, serving
from tests.integration.support.parity import assert_same_answer
from tests.integration.support.processes import held_back, scheduler_pid, sent, stopped

pytestmark = pytest.mark.timeout(900)

CHUNK = 64
"""Most tokens of a prefill batch."""
SRPT = ["--schedule-policy", "srpt"]
ENABLE = "--enable-prefill-only"


@pytest.fixture(scope="module")
def running(model_dir: Callable[[str], Path]) -> Iterator[Serving]:
    chunks = ("--chunked-prefill-size", str(CHUNK))
    # With metrics, answers tell when their prompts were computed.
    flags = (ENABLE, *SRPT, *chunks, "--sleep-on-idle", "--enable-metrics")
    with serving(model_dir("micro"), "stock_order", *flags) as found:
        yield found


@pytest.fixture(scope="module")
def server(running: Serving) -> LocalServer:
    """Replaces the shared server."""
    return running.server


@pytest.fixture(scope="module")
def client(running: Serving) -> Client:
    return running.client


class Race:
    """Requests for one token each, and the order in which the scheduler computes them."""

    def __init__(self, client: Client, pool: ThreadPoolExecutor) -> None:
        self._client = client
        self._pool = pool
        self._replies: list[tuple[str, Future[httpx.Response]]] = []

    def send(self, name: str, prompt: list[int]) -> None:
        """Send a request, and return when it is on its way to the scheduler."""
        (reply,) = sent(self._client, self._pool, [generate_body(prompt, 1)], "/generate", OPT_OUT)
        self._replies.append((name, reply))

    def results(self) -> list[str]:
        """Wait for all; by the scheduler's clock, since answers may overtake each other."""
        finished = []
        for name, reply in self._replies:
            answer = reply.result()
            assert answer.status_code == 200, answer.text
            finished.append((answer.json()["meta_info"]["prefill_finished_time"], name))
        return [name for _, name in sorted(finished)]


def prompt_of(length: int, seed: int) -> list[int]:
    return random_ids(random.Random(seed), length)


@contextmanager
def slowed(client: Client, sleep_s: float) -> Iterator[None]:
    """Make every forward take this long."""
    client.post("/slow_down", {"forward_sleep_time": sleep_s})
    try:
        yield
    finally:
        client.post("/slow_down", {"forward_sleep_time": None})


@pytest.mark.patch("P16")
def test_short_prompts_overtake_a_long_one_that_came_first(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    race = Race(client, pool)
    with held_back(server, client, pool, []):
        race.send("long", prompt_of(8 * CHUNK, seed=1))
        for seed, length in enumerate((40, 20, 30), start=2):
            race.send("short", prompt_of(length, seed))
    assert race.results() == ["short", "short", "short", "long"]


def test_cached_tokens_do_not_count(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    known = prompt_of(8 * CHUNK, seed=11)
    client.generate(known, 1, stock=True)
    race = Race(client, pool)
    with held_back(server, client, pool, []):
        race.send("new", prompt_of(3 * CHUNK, seed=12))
        race.send("known", known)
    assert race.results() == ["known", "new"]


def test_a_long_prompt_that_has_begun_makes_room(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    seen = server.log_path.stat().st_size
    race = Race(client, pool)
    with slowed(client, 0.2):
        race.send("long", prompt_of(30 * CHUNK, seed=21))
        wait_until(lambda: server.log_path.read_bytes()[seen:].count(b"run_batch sleep") >= 2)
        with stopped(scheduler_pid(server)):  # for as long as it takes to send
            for seed in (22, 23, 24):
                race.send("short", prompt_of(CHUNK // 2 - 1, seed))
        assert race.results() == ["short", "short", "short", "long"]


def test_a_stream_of_short_prompts_does_not_starve_a_long_one(
    client: Client, pool: ThreadPoolExecutor
) -> None:
    stop, answered, seeds = Event(), [], count(31)

    def stream(worker: int) -> None:
        rng = random.Random(1000 + worker)
        while not stop.is_set():
            answered.append(client.generate(random_ids(rng, 40), 1, stock=True))

    def is_overtaken() -> bool:
        """Whether more short ones than ever waited were answered before a long one, which was."""
        before = len(answered)
        assert len(client.generate(prompt_of(6 * CHUNK, next(seeds)), 1, stock=True)) == 1
        assert not any(worker.done() for worker in workers)
        return len(answered) - before > len(workers)

    with slowed(client, 0.05):
        workers = [pool.submit(stream, worker) for worker in range(6)]
        try:
            wait_until(lambda: len(answered) >= len(workers))
            # It ages by 64 tokens a batch, and the clients may have no time to send meanwhile.
            wait_until(is_overtaken)
        finally:
            stop.set()
            for worker in workers:
                worker.result()


def test_the_same_tokens_as_hugging_face(
    client: Client, pool: ThreadPoolExecutor, model_dir: Callable[[str], Path]
) -> None:
    prompts = [prompt_of(length, seed=40 + length) for length in (300, 5, 64, 65, 20)]
    outputs = list(pool.map(lambda prompt: client.generate(prompt, 12), prompts))
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir("micro"), dtype=torch.float32)
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            for _ in output:
                best = model(ids).logits[:, -1:].argmax(-1)
                ids = torch.cat([ids, best], dim=1)
        assert output == ids[0, len(prompt) :].tolist()


def test_scoring_is_served_beside_it(client: Client) -> None:
    body = score_body(51, 30, [5] * 8)
    assert_same_answer(client.score(body), client.score(body, stock=True))
    assert client.scheduler()["counters"]["requests"]["ok"] == 1


# How it is asked for


@pytest.fixture(scope="module")
def outcomes(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """How starts ended, by case."""
    directory = tmp_path_factory.mktemp("launch")
    argv = ["--model-path", str(model_dir("micro")), "--device", "cpu", *SRPT]
    cases = {
        "alone": {"argv": argv},
        "priorities": {"argv": [*argv, ENABLE, "--enable-priority-scheduling"]},
        "help": {"argv": ["--help"], "parse_only": True},
    }
    asked, out = directory / "cases.json", directory / "out.json"
    asked.write_text(json.dumps(cases))
    run_script("launch_runner", asked, out)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_without_the_flag_it_is_refused(outcomes: dict[str, Any]) -> None:
    assert outcomes["alone"]["exit"].startswith(
        "--schedule-policy srpt needs --enable-prefill-only; add that flag, or choose"
    )
    assert outcomes["alone"]["children"] == []


def test_sglang_refuses_it_with_priorities(outcomes: dict[str, Any]) -> None:
    wanted = "schedule_policy must be 'fcfs' or 'lof'. 'srpt' is not supported."
    assert wanted in outcomes["priorities"]["error"]


def test_the_help_lists_it(outcomes: dict[str, Any]) -> None:
    assert outcomes["help"]["exit"] == 0
    text = " ".join(outcomes["help"]["output"].split())
    assert "shortest-prefill-first,srpt}" in text
    assert "srpt: shortest remaining prefill first, with ageing; needs" in text


def test_the_engine_takes_it_with_the_flag_only(model_dir: Callable[[str], Path]) -> None:
    code = """
import sys
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.plugins import load_plugins
load_plugins()
given = {"model_path": sys.argv[1], "device": "cpu", "schedule_policy": "srpt"}
enabled = Engine.server_args_class(**given, enable_prefill_only=True)
enabled.resolve_once()
enabled.check_server_args()
print(enabled.schedule_policy)
Engine(**given)
"""
    run = run_forked([sys.executable, "-c", code, str(model_dir("micro"))])
    assert run.stdout.splitlines()[-1] == "srpt"
    assert run.returncode == 1
    assert "--schedule-policy srpt needs --enable-prefill-only" in run.stderr
