"""From label values to what SGLang's scoring API returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.wire.packed import Float32Array, PackedRows

Matrix: TypeAlias = list[list[float]]

_AT_A_TIME = 1 << 16
"""Values that become objects in one step, during which no other thread runs."""


def split_rows(values: NDArray[Any], rows: PackedRows) -> list[NDArray[Any]]:
    """Cut flat label values into one array a row."""
    if rows.shared_labels:
        return list(values.reshape(rows.num_rows, -1))
    return np.split(values, np.cumsum(rows.label_lens)[:-1])


def scores_from_values(
    values: Float32Array, rows: PackedRows, *, apply_softmax: bool, temperature: float
) -> Matrix:
    """Return `flat_scores` as one list a row, in the order of its labels."""
    flat = flat_scores(values, rows, apply_softmax=apply_softmax, temperature=temperature)
    return _matrix(flat, rows)


def flat_scores(
    values: Float32Array, rows: PackedRows, *, apply_softmax: bool, temperature: float
) -> NDArray[np.float64]:
    """Return the scores of all rows, float64 ``[rows.num_values]``.

    Without `apply_softmax` a score is the label's probability over the whole vocabulary,
    ``exp(logprob)``; with it, ``softmax(logprob / temperature)`` over the row's labels,
    computed in float64 like `_convert_logprobs_to_scores` does.

    Args:
        values: natural-log probabilities (or logits, with `apply_softmax`), float32
            ``[rows.num_values]``.
        temperature: finite and > 0.
    """
    if not apply_softmax:
        return np.exp(values, dtype=np.float64)
    wide = values.astype(np.float64)
    if rows.shared_labels:
        return _softmax(wide.reshape(rows.num_rows, -1), temperature).ravel()
    return np.concatenate([_softmax(row, temperature) for row in split_rows(wide, rows)])


def scores_of_reads(
    reads: Sequence[Float32Array], *, apply_softmax: bool, temperature: float
) -> Matrix:
    """Return the scores of each read's labels; see `flat_scores`."""
    if not apply_softmax:
        return [np.exp(read, dtype=np.float64).tolist() for read in reads]
    return [_softmax(read.astype(np.float64), temperature).tolist() for read in reads]


def logprob_rows(values: Float32Array, rows: PackedRows) -> Matrix:
    """Return the label log-probs (natural log), one list a row."""
    return _matrix(values, rows)


def _matrix(values: NDArray[Any], rows: PackedRows) -> Matrix:
    """Flat label values as one list a row."""
    if rows.shared_labels:  # in few steps, which take a fifth of the time of one for each row
        return table_rows(values.reshape(rows.num_rows, -1))
    return [row.tolist() for row in split_rows(values, rows)]


def table_rows(table: NDArray[Any]) -> Matrix:
    """Return a table ``[rows, columns]`` as one list a row."""
    step = max(1, _AT_A_TIME // max(1, table.shape[1]))
    if step >= len(table):
        matrix: Matrix = table.tolist()
        return matrix
    return [row for a in range(0, len(table), step) for row in table[a : a + step].tolist()]


def _softmax(values: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    # Centred before scaling, so that small temperatures do not overflow.
    weights = np.exp((values - values.max(axis=-1, keepdims=True)) / temperature)
    normalised: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return normalised
