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
    said = f"{asked}: HTTP {status}: {message_of(text)}"
    error: PrefillExtError
    match status:
        case 429:
            error = ServerBusyError(with_remedy(said, TRY_LATER))
            error.retry_after_s = _seconds(headers.get("retry-after", ""))
        case 503:
            error = ServerUnavailableError(with_remedy(said, "Try again when the server is ready."))
            error.retry_after_s = _seconds(headers.get("retry-after", ""))
        case 504:
            error = DeadlineExceededError(with_remedy(said, GIVE_TIME))
        case _:
            remedy = _REMEDIES.get(status)
            error = ServerRefusedError(with_remedy(said, remedy) if remedy else said)
            error.status = status
            error.message = message_of(text)
    return error


def with_remedy(said: str, remedy: str) -> str:
    """Join what a server says, with or without a full stop, and what to do about it."""
    return f"{said.rstrip('.')}. {remedy}"


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
