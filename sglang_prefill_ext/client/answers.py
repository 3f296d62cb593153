"""Turns a server's answers into arrays or errors."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import (
    DeadlineExceededError,
    PrefillExtError,
    ServerBusyError,
    ServerRefusedError,
    ServerUnavailableError,
    UnexpectedAnswerError,
)

TRY_LATER = "Try again later, or with fewer requests at a time."
GIVE_TIME = "Give it a longer timeout_s, or fewer items."
_REMEDIES = {
    401: "Give the server's key: api_key, or --api-key.",
    404: "Check the address: it names an SGLang server, and does not end in /v1.",
    429: TRY_LATER,
    503: "Try again when the server is ready.",
    504: GIVE_TIME,
}

_SHOWN_CHARACTERS = 500


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Scores of items.

    Attributes:
        scores: probabilities, ``[items, labels]``; if no labels were given, a classification
            model's scores of its classes, ``[items, classes]``.
        token_logprobs: natural log-probabilities of the labels in the whole vocabulary at
            temperature 1, ``[items, labels]``; None unless asked for.
        prompt_tokens: tokens of all prompts, the query counted with every item.
    """

    scores: NDArray[np.float64]
    token_logprobs: NDArray[np.float64] | None
    prompt_tokens: int


def read_scores(answer: Any, items: int) -> Scores:
    """Read an answer of /v1/score; a `ValueError`, `KeyError` or `TypeError` if it is none."""
    logprobs = answer.get("token_logprobs")
    return Scores(
        scores=_rows(answer["scores"], items, np.float64),
        token_logprobs=None if logprobs is None else _rows(logprobs, items, np.float64),
        prompt_tokens=int(answer["usage"]["prompt_tokens"]),
    )


def join_scores(parts: Sequence[Scores], labels: int = 0) -> Scores:
    """Join the scores of parts of one item list, in order.

    Args:
        labels: how many each item has; 0 for the classes of the model.

    Raises:
        UnexpectedAnswerError: there are more scores, or fewer.
    """
    logprobs = [part.token_logprobs for part in parts if part.token_logprobs is not None]
    scores = np.concatenate([part.scores for part in parts])
    if labels and scores.shape[1] != labels:
        raise UnexpectedAnswerError(
            f"scores: {scores.shape[1]} for each item, and not for {labels} labels. A server of "
            "classes or embeddings ignores labels. Ask one that generates, or leave them out."
        )
    return Scores(
        scores=scores,
        token_logprobs=np.concatenate(logprobs) if logprobs else None,
        prompt_tokens=sum(part.prompt_tokens for part in parts),
    )


def read_embeddings(answer: Any, prompts: int) -> NDArray[np.float32]:
    """Read an answer of /v1/embeddings in base64 (little-endian float32), ``[prompts, dim]``."""
    codes = [base64.b64decode(each["embedding"], validate=True) for each in answer["data"]]
    return _rows([np.frombuffer(code, "<f4") for code in codes], prompts, np.float32)


def read_classes(answer: Any, prompts: int) -> NDArray[np.float32]:
    """Read an answer of /classify, ``[prompts, classes]``; a cross encoder's class is a number."""
    return _rows([np.atleast_1d(each["embedding"]) for each in answer], prompts, np.float32)


def _rows(rows: Any, count: int, dtype: type[Any]) -> NDArray[Any]:
    array = np.array(rows, dtype)
    if array.ndim != 2 or len(array) != count:
        raise ValueError(f"shape {array.shape} instead of {count} rows")
    return array


def error_of(asked: str, status: int, headers: Mapping[str, str], text: str) -> PrefillExtError:
    """Return the error for an answer that is not 200.

    Args:
        asked: what was asked for, for the message.
        headers: names in lower case, or a mapping that ignores case.
    """
    said, wait_s = message_of(text), _seconds(headers.get("retry-after", ""))
    return error_for(status, f"{asked}: HTTP {status}", said, wait_s, _REMEDIES.get(status, ""))


def error_for(status: int, asked: str, said: str, wait_s: float, remedy: str) -> PrefillExtError:
    """Return the error for an HTTP status, or for a code of gRPC that means the same.

    Args:
        said: the server's message, with or without a full stop.
        wait_s: seconds after which the server wants a repeat; 0 if it does not say.
        remedy: what to do about it; empty if nobody knows.
    """
    message = f"{asked}: {said}"
    if remedy:
        message = f"{message.rstrip('.')}. {remedy}"
    if status in (429, 503):
        later = ServerBusyError(message) if status == 429 else ServerUnavailableError(message)
        later.retry_after_s = wait_s
        return later
    if status == 504:
        return DeadlineExceededError(message)
    refused = ServerRefusedError(message)
    refused.status, refused.message = status, said
    return refused


def message_of(text: str) -> str:
    """Return what the body of an error says.

    SGLang writes ``{"message": ...}`` or ``{"error": {"message": ...}}``. A proxy in front of it
    may write ``{"detail": ...}``, ``{"error": ...}`` or text.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = text
    while isinstance(found, dict) and (inner := found.keys() & {"message", "error", "detail"}):
        found = found[min(inner, key=("message", "error", "detail").index)]
    said = found if isinstance(found, str) else json.dumps(found)
    return said.strip()[:_SHOWN_CHARACTERS] or "(no message)"


def _seconds(retry_after: str) -> float:
    """Seconds of a Retry-After header; 0, for unknown, if it holds a date or anything else."""
    return float(retry_after) if re.fullmatch(r"[0-9]{1,6}", retry_after) else 0.0
