"""From label values to what SGLang's scoring API returns."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.frontend.worker import table_rows
from sglang_prefill_ext.wire.arrays import Float32Array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Read

Matrix: TypeAlias = list[list[float]]


def scores_from_values(
    values: Float32Array, read: Read, *, apply_softmax: bool, temperature: float
) -> Matrix:
    """Return `flat_scores` as one list a row, in the order of its labels."""
    flat = flat_scores(values, read, apply_softmax=apply_softmax, temperature=temperature)
    return _matrix(flat, read)


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
        return _softmax(rows, temperature).ravel()
    return np.concatenate([_softmax(row, temperature) for row in rows])


def logprob_rows(values: Float32Array, read: Read) -> Matrix:
    """Return the label log-probs (natural log), one list a row."""
    return _matrix(values, read)


def scores_by_item(scores: Matrix, rows: PackedRows) -> list[Matrix]:
    """Return a matrix ``[anchors, labels]`` for every item, of the scores of all anchors."""
    is_anchor = rows.read.lens_of(0, rows.num_reads) > 0
    ends = np.cumsum(np.add.reduceat(is_anchor, rows.read_starts()[:-1], dtype=np.int64)).tolist()
    return [scores[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def _matrix(values: NDArray[Any], read: Read) -> Matrix:
    """Flat label values as one list a row."""
    rows = read.by_read(values)
    if isinstance(rows, np.ndarray):  # in few steps: a fifth of the time of one for each row
        return table_rows(rows)
    return [row.tolist() for row in rows]


def _softmax(values: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    # Centred before scaling, so that small temperatures do not overflow.
    weights = np.exp((values - values.max(axis=-1, keepdims=True)) / temperature)
    normalised: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return normalised
