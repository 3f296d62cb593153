"""Requests with their expected answers, and how they ended."""

from __future__ import annotations

import http
import json
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bench.fleet.faults.connection import Connection
from bench.gate import difference
from bench.workloads import Shape, draw_requests, score_body
from sglang_prefill_ext.modelmaker import catalogue

CLEAR = (429, 503, 504)
"""Status codes of errors that tell a client to try again later."""

_LONGEST_S = 120.0
_VOCABULARY = 8_000
_SHAPES = (Shape(40, 60, 30), Shape(20, 90, 12), Shape(60, 30, 80), Shape(5, 2, 4))


class End(StrEnum):
    """How a request ended: right numbers, a clear error, another answer (wrong), or none (lost)."""

    RIGHT = "right"
    CLEAR = "clear error"
    WRONG = "wrong"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request and its expected answer.

    Attributes:
        wanted: the expected answer, read from JSON.
    """

    path: str
    body: bytes
    wanted: Any
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, port: int, path: str, body: Any, **headers: str) -> Ask:
        """Make a request whose expected answer is what the server at `port` answers now.

        Raises:
            ValueError: the server answers with an error.
        """
        asked = cls(path, json.dumps(body).encode(), None, tuple(headers.items()))
        connection = Connection(port)
        status, content = connection.post(path, asked.body, dict(headers), _LONGEST_S)
        connection.close()
        if status != http.HTTPStatus.OK:
            raise ValueError(f"HTTP {status}: {content.decode()}")
        return cls(path, asked.body, json.loads(content), asked.headers)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request ended.

    Attributes:
        seconds: time from its first attempt to its end.
        again: how often it was sent again because its connection broke.
        why: why it is not right; begins with the HTTP status if there is one.
    """

    end: End
    seconds: float
    again: int = 0
    why: str = ""


def judged(ask: Ask, status: int, content: bytes, seconds: float, again: int) -> Outcome:
    """Compare an answer with the wanted one."""
    shown = f"{status} {_message(content)}"
    if status in CLEAR:
        return Outcome(End.CLEAR, seconds, again, shown)
    if status != http.HTTPStatus.OK:
        return Outcome(End.WRONG, seconds, again, shown)
    why = difference(json.loads(content), ask.wanted, ask.path)
    return Outcome(End.WRONG if why else End.RIGHT, seconds, again, why)


def asks_of(port: int) -> list[Ask]:
    """Make requests of each kind that a router divides or passes on; an engine's answers are right.

    Args:
        port: of that engine, whose model is a decoder reranker.
    """
    rng = random.Random(0)
    names = [item.text for item in rng.sample(catalogue.items(), 40)]
    texts = {"query": "which one? ", "items": names, "label_token_ids": [5, 9]}
    scores = [
        json.loads(score_body(request, token_logprobs=True))
        for shape in _SHAPES
        for request in draw_requests(shape, _VOCABULARY, 2, seed=0)
    ]
    stock = {"x-prefill-only": "off"}
    return [
        *(Ask.of(port, "/v1/score", each) for each in (*scores, texts)),
        Ask.of(port, "/v1/rerank", {"query": "red wool blanket", "documents": names}),
        Ask.of(port, "/v1/score", texts | {"items": names[:3]}, **stock),
    ]


def _message(content: bytes) -> str:
    """Return the message of an error in any of the servers' forms."""
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content[:300].decode(errors="replace")
