"""The kinds of requests: their bodies, the flags of the servers, and the numbers of an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from bench.gate import TOLERANCE, Agreement, largest_logprob_difference
from bench.http_client import post_bytes
from bench.score.plan import GATE_REQUESTS, Case
from bench.workloads import FIRST_ID

POOL_DECISIONS = 256
"""Different requests, those of the gate included, unless more are asked for."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of one request: all begin with the same tokens, and each has an own ending.

    Attributes:
        items: number of prompts.
        shared: number of tokens that all prompts share.
        shortest, longest: limits of an ending's length, in tokens.
    """

    items: int
    shared: int
    shortest: int
    longest: int

    def __str__(self) -> str:
        ends = str(self.longest)
        if self.shortest != self.longest:
            ends = f"{self.shortest}-{self.longest}"
        return f"{self.shared}+{ends}x{self.items}"

    def draw(
        self, vocabulary: int, seed: int = 0, count: int = POOL_DECISIONS
    ) -> list[list[list[int]]]:
        """Draw the prompts of distinct requests from random ids; all lengths are equally likely."""
        rng = np.random.default_rng(seed)

        def ids(length: int) -> list[int]:
            drawn: list[int] = rng.integers(FIRST_ID, vocabulary, length).tolist()
            return drawn

        requests = []
        for _ in range(count):
            beginning = ids(self.shared)
            lengths = rng.integers(self.shortest, self.longest + 1, self.items)
            requests.append([beginning + ids(length) for length in lengths])
        return requests


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request.

    Attributes:
        path: path of the route.
        flags: flags of both servers.
        prompts: the prompts of a request.
        body: makes the body of a request from its prompts and the number of shared tokens.
        numbers: takes the numbers out of an answer, in a fixed order.
        ids: takes token ids out of it. They are compared in float32 only: in half precision, two
            tokens are often equally likely.
        counts_prompts: whether the server counts prompts, because SGLang makes each a request.
    """

    path: str
    flags: tuple[str, ...]
    prompts: Prompts
    body: Callable[[list[list[int]], int], dict[str, Any]]
    numbers: Callable[[Any], list[float]]
    ids: Callable[[Any], list[float]] = lambda _answer: []
    counts_prompts: bool = True


def _one_or_all(prompts: list[list[int]]) -> Any:
    return prompts[0] if len(prompts) == 1 else prompts


def _embedding_body(prompts: list[list[int]], _shared: int) -> dict[str, Any]:
    return {"model": "m", "input": _one_or_all(prompts)}


def _token_body(prompts: list[list[int]], _shared: int, **grammar: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": 1, "temperature": 0, **grammar}
    return {"input_ids": _one_or_all(prompts), "sampling_params": sampling, "return_logprob": True}


def _logprobs_body(prompts: list[list[int]], shared: int) -> dict[str, Any]:
    """Ask for the log-probs of all tokens after the shared ones."""
    return {
        "input_ids": _one_or_all(prompts),
        "sampling_params": {"max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": max(0, shared - 1),
    }


def _vectors(answer: Any) -> list[float]:
    return [number for each in answer["data"] for number in each["embedding"]]


def _meta(answer: Any) -> list[dict[str, Any]]:
    return [each["meta_info"] for each in (answer if isinstance(answer, list) else [answer])]


def _tokens(answer: Any) -> list[Any]:
    """The log-prob, id and text of every first token."""
    return [meta["output_token_logprobs"][0] for meta in _meta(answer)]


def _token_logprobs(answer: Any) -> list[float]:
    return [logprob for logprob, _, _ in _tokens(answer)]


def _token_ids(answer: Any) -> list[float]:
    return [float(token_id) for _, token_id, _ in _tokens(answer)]


def _logprobs(answer: Any) -> list[float]:
    return [value for meta in _meta(answer) for value, _, _ in meta["input_token_logprobs"][1:]]


def _token_kind(length: int, **grammar: Any) -> Kind:
    prompts, body = Prompts(1, 0, length, length), partial(_token_body, **grammar)
    return Kind("/generate", (), prompts, body, _token_logprobs, _token_ids)


KINDS: Mapping[str, Kind] = {
    "embedding": Kind(
        "/v1/embeddings",
        ("--is-embedding",),
        Prompts(1, 0, 8, 128),
        _embedding_body,
        _vectors,
        counts_prompts=False,
    ),
    "token": _token_kind(128),
    "token-512": _token_kind(512),
    "grammar": _token_kind(128, regex="(yes|no)"),
    "logprobs": Kind("/generate", (), Prompts(50, 60, 20, 20), _logprobs_body, _logprobs),
}


# Names that mypy cannot see, because they are not literals.
KindName = StrEnum("KindName", list(KINDS))  # type: ignore[misc]


def numbers_of(kind: Kind, body: bytes, tolerance: float) -> np.ndarray:
    """Return the numbers in the body of an answer that have to agree."""
    answer = json.loads(body)
    ids = kind.ids(answer) if tolerance == TOLERANCE["float32"] else []
    return np.array([*kind.numbers(answer), *ids], dtype=np.float64)


def compare_numbers(
    kind: Kind, stock: Mapping[int, bytes], extension: Mapping[int, bytes], tolerance: float
) -> Agreement:
    """As `gate.compare`, of numbers that are compared as log-probabilities; a row is an answer."""
    differences = [0.0]
    for number in stock.keys() & extension.keys():
        theirs, ours = (numbers_of(kind, each[number], tolerance) for each in (stock, extension))
        differences.append(largest_logprob_difference(theirs, ours, tolerance))
    return Agreement(len(differences) - 1, 0.0, float(np.max(differences)), 0, tolerance)


def case_of(kind: Kind, vocabulary: int, count: int = POOL_DECISIONS) -> Case:
    """Prepare `count` requests of a kind, of which a few are the gate's."""
    prompts = kind.prompts
    bodies = [kind.body(each, prompts.shared) for each in prompts.draw(vocabulary, count=count)]
    pool = [post_bytes(kind.path, json.dumps(body).encode()) for body in bodies]
    counted = prompts.items if kind.counts_prompts else 1
    return Case(prompts, 1.0, pool[GATE_REQUESTS:], pool[:GATE_REQUESTS], counted)
