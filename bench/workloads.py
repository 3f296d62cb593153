"""Loads, and the requests that benchmarks send (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.sizing.shape import Shape as Shape

USUAL_SHAPE = Shape(60, 2, 50)

LABEL_IDS = (1001, 1002)
"""Label tokens of every request; two, as for a yes/no question."""

FIRST_ID = 16  # the ids below may be special tokens
_CLOSED = re.compile(r"[1-9]\d*")
_OPEN = re.compile(r"(\d+(?:\.\d+)?)(/s|%)")


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Each client sends its next request once it has the answer to the last; written ``8``."""

    clients: int

    def __str__(self) -> str:
        return f"{self.clients} client{'s' if self.clients > 1 else ''}"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Poisson arrivals that do not wait for answers; written ``12.5/s`` or ``70%``.

    Attributes:
        rate: requests per second, or a share of the rate that stock reached in the closed loop.
        relative: whether `rate` is a share.
    """

    rate: float
    relative: bool

    def __str__(self) -> str:
        return f"{self.rate:.0%} of stock" if self.relative else f"{self.rate:g} req/s"

    def requests_per_s(self, stock_requests_per_s: float) -> float:
        """The rate to send at, given stock's closed-loop rate of the same shape."""
        return self.rate * stock_requests_per_s if self.relative else self.rate


Load = ClosedLoop | OpenLoop


def parse_load(text: str) -> Load:
    """Read ``8`` (clients), ``12.5/s`` (requests per second) or ``70%`` (of stock's rate).

    Raises:
        ConfigError: `text` is none of these, or a rate of zero.
    """
    if _CLOSED.fullmatch(text):
        return ClosedLoop(int(text))
    match = _OPEN.fullmatch(text)
    rate = float(match[1]) if match else 0.0
    if match is None or rate == 0.0:
        raise ConfigError(
            f"load {text!r}: write a number of clients (8), a rate (12.5/s) or a share of "
            "stock's closed-loop rate (70%)."
        )
    return OpenLoop(rate / 100, True) if match[2] == "%" else OpenLoop(rate, False)


def closed_first(loads: Iterable[Load]) -> list[Load]:
    """Order loads: closed loops come first, fewest clients first.

    Open loops may need the rate of the last closed loop.

    Raises:
        ConfigError: a load is relative to the rate of a closed loop, and there is none.
    """
    loads = list(loads)
    closed = [load for load in loads if isinstance(load, ClosedLoop)]
    opened = [load for load in loads if isinstance(load, OpenLoop)]
    if not closed and any(load.relative for load in opened):
        raise ConfigError("a load in % of stock needs a closed loop too; add a load like 8.")
    return [*sorted(closed, key=lambda load: load.clients), *opened]


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One request as token ids."""

    query: list[int]
    items: list[list[int]]


def draw_requests(shape: Shape, vocabulary: int, count: int, seed: int) -> list[ScoreRequest]:
    """Draw `count` requests of uniformly random tokens, the same for the same arguments.

    The tokens must vary: prompts of one repeated token are prefixes of each other, so a prefix
    cache would answer nearly everything.
    """
    sizes = (shape.query_tokens, shape.item_tokens, shape.items)
    rng = np.random.default_rng([seed, *sizes])

    def tokens(*dimensions: int) -> np.ndarray:
        return rng.integers(FIRST_ID, vocabulary, dimensions)

    return [
        ScoreRequest(
            tokens(shape.query_tokens).tolist(), tokens(shape.items, shape.item_tokens).tolist()
        )
        for _ in range(count)
    ]


def score_body(
    request: ScoreRequest,
    decode: Callable[[Sequence[int]], str] | None = None,
    token_logprobs: bool = False,
) -> bytes:
    """The JSON body of ``POST /v1/score``.

    Args:
        request: the token ids.
        decode: turns ids into text, to send text instead of ids. The text may have slightly other
            token counts than the shape.
        token_logprobs: also ask for the labels' natural log-probabilities.
    """
    encode = decode or list
    body = {
        "query": encode(request.query),
        "items": [encode(item) for item in request.items],
        "label_token_ids": list(LABEL_IDS),
        "apply_softmax": True,
        "return_token_logprobs": token_logprobs,
    }
    return json.dumps(body, separators=(",", ":")).encode()


def generate_body(prompt: Sequence[int], new_tokens: int) -> bytes:
    """The JSON body of ``POST /generate`` for `new_tokens` greedy tokens, streamed."""
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    body = {"input_ids": list(prompt), "sampling_params": sampling, "stream": True}
    return json.dumps(body, separators=(",", ":")).encode()
