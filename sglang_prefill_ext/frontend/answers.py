"""Turns the values of a packed result into answers: scores, tables, JSON, and counts of tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.wire.arrays import Float32Array, Int32Array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.read import Read

_Float = TypeVar("_Float", np.float32, np.float64)

Matrix: TypeAlias = list[list[float]]

_AT_A_TIME = 1 << 16
"""Values made into Python objects in one step, during which no other thread runs."""

ROWS_AT_A_TIME = 16
"""Rows written as JSON in one step; a row may have as many numbers as the vocabulary has tokens."""

_USAGE: dict[str, Any] = {
    "prompt_tokens": 0,
    "total_tokens": 0,
    "completion_tokens": 0,
    "prompt_tokens_details": None,
    "reasoning_tokens": 0,
    "completion_tokens_details": None,
}


@dataclass(frozen=True, slots=True)
class Served:
    """Token counts and times of a call that was served.

    Attributes:
        prompt_tokens: tokens of each prompt, int32 ``[prompts]``.
        cached_tokens: how many of these the prefix cache had, int32 ``[prompts]``.
        new_tokens: tokens that were generated for each prompt.
        queue_s, compute_s: how long a prompt waited in the scheduler, and how long its forwards
            took; the maximum over all prompts.
    """

    prompt_tokens: Int32Array
    cached_tokens: Int32Array
    new_tokens: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0

    @property
    def num_prompts(self) -> int:
        return len(self.prompt_tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens of all prompts."""
        return int(self.prompt_tokens.sum())


def served_rows(rows: PackedRows, answer: PackedResult) -> Served:
    """Count every row as a prompt. Cached tokens belong to the prefix, so every row has them."""
    lens = rows.suffix_lens + np.int32(rows.prefix_len)
    cached = np.full_like(lens, min(answer.tokens_cached, rows.prefix_len))
    return Served(lens, cached, 0, answer.queue_ms / 1e3, answer.compute_ms / 1e3)


@dataclass(frozen=True, slots=True)
class Scored:
    """The result of a packed scoring call, with the rows that were sent and their answer."""

    scores: Matrix | list[Matrix]
    token_logprobs: Matrix | None
    rows: PackedRows
    answer: PackedResult


def usage_of(prompt_tokens: int) -> dict[str, Any]:
    """SGLang's `UsageInfo` of a call that generates nothing, as its OpenAI routes write it."""
    return _USAGE | {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}


def native_answers(
    vectors: Sequence[Any], served: Served, rids: Sequence[str], *, weights: str, seconds: float
) -> list[dict[str, Any]]:
    """The answers of SGLang's `generate_request` to a call for vectors, one a prompt.

    Args:
        rids: names of the prompts.
        weights: SGLang's version of the weights.
        seconds: from the arrival of the call to its answer.
    """
    now_s = time.time()
    return [
        {
            "embedding": vector,
            "meta_info": {
                "id": rid,
                "finish_reason": {"type": "length", "length": 0},
                "prompt_tokens": tokens,
                "weight_version": weights,
                "num_retractions": 0,
                "e2e_latency": seconds,
                "response_sent_to_client_ts": now_s,
            },
        }
        for rid, vector, tokens in zip(rids, vectors, served.prompt_tokens.tolist(), strict=True)
    ]


def flat_scores(
    values: Float32Array, read: Read, *, apply_softmax: bool, temperature: float
) -> NDArray[np.float64]:
    """Return the scores of all rows, float64 ``[values]``.

    Without `apply_softmax` a score is the label's probability over the whole vocabulary,
    ``exp(logprob)``; with it, ``softmax(logprob / temperature)`` over the row's labels,
    computed in float64 like `_convert_logprobs_to_scores` does.

    Args:
        values: natural-log probabilities (or logits, with `apply_softmax`), float32.
        temperature: finite and > 0.
    """
    if not apply_softmax:
        return np.exp(values, dtype=np.float64)
    rows = read.by_read(values.astype(np.float64))
    if isinstance(rows, np.ndarray):
        return softmax(rows, temperature).ravel()
    return np.concatenate([softmax(row, temperature) for row in rows])


def scores_by_item(scores: Matrix, rows: PackedRows) -> list[Matrix]:
    """Divide the scores of all anchors among the items: one matrix ``[anchors, labels]`` each."""
    is_anchor = rows.read.lens_of(0, rows.num_reads) > 0
    ends = np.cumsum(np.add.reduceat(is_anchor, rows.read_starts()[:-1], dtype=np.int64)).tolist()
    return [scores[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def label_rows(values: NDArray[Any], read: Read) -> Matrix:
    """Return the values of labels, such as log-probs (natural log), as one list a row.

    Each is in the order of the row's labels.
    """
    rows = read.by_read(values)
    if isinstance(rows, np.ndarray):  # a few large steps take a fifth of the time of one a row
        return table_rows(rows)
    return [row.tolist() for row in rows]


def softmax(values: NDArray[_Float], temperature: float = 1.0) -> NDArray[_Float]:
    """The softmax of ``values / temperature`` over the last axis."""
    # Centred before scaling, so that small temperatures do not overflow.
    weights = np.exp((values - values.max(axis=-1, keepdims=True)) / temperature)
    normalised: NDArray[_Float] = weights / weights.sum(axis=-1, keepdims=True)
    return normalised


def table_rows(table: NDArray[Any]) -> list[list[Any]]:
    """Return a table ``[rows, columns]`` as one list a row, some rows at a time."""
    step = max(1, _AT_A_TIME // max(1, table.shape[1]))
    if step >= len(table):
        rows: list[list[Any]] = table.tolist()
        return rows
    return [row for a in range(0, len(table), step) for row in table[a : a + step].tolist()]


def in_parts(rows: Sequence[Any], at_a_time: int = ROWS_AT_A_TIME) -> Any:
    """Encode rows as JSON, some at a time, so that other threads can run in between.

    Returns:
        A `msgspec.Raw`, which msgspec's encoder inserts as it is; few rows are returned unchanged.
    """
    if len(rows) <= at_a_time:
        return rows
    parts = (rows[start : start + at_a_time] for start in range(0, len(rows), at_a_time))
    return msgspec.Raw(b"[%s]" % b",".join(msgspec.json.encode(part)[1:-1] for part in parts))
