"""Compare answers of stock and extension; no speed is reported if they disagree (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import PrefillExtError

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-2}
"""Largest difference, by the model's dtype, in probability and in natural log-probability."""

LARGE_LOGPROB, LARGE_LOGPROB_OF_HALF = 10.0, 128 * TOLERANCE["bfloat16"]
"""The difference of a log-probability beyond this size is divided by the multiple of this size.

Rounding errors grow with the logits. On a random model whose log-probs reach -21, stock in float32
itself differs by up to 1.1e-5 from the model in float64, so no other path can be expected to be
nearer. In half precision, logits are stored in steps of up to 1/128 of their size."""

VOLATILE = {
    *("id", "e2e_latency", "response_sent_to_client_ts", "created", "cached_tokens"),
    *("cached_tokens_details", "dp_rank"),
}
"""Fields that differ between calls, or that may differ between the paths."""

Matrix: TypeAlias = NDArray[np.float64]


class GateError(PrefillExtError):
    """Stock and extension disagree, or their answers cannot be compared."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request.

    Attributes:
        scores: probabilities over the labels, ``[items, labels]``.
        logprobs: natural log-probabilities of the labels, ``[items, labels]``; None if the
            request did not ask for them.
    """

    scores: Matrix
    logprobs: Matrix | None

    @classmethod
    def from_body(cls, body: bytes) -> Answer:
        """Read the body of a ``/v1/score`` answer."""
        fields = json.loads(body)
        logprobs = fields.get("token_logprobs")
        return cls(
            np.array(fields["scores"], np.float64),
            None if logprobs is None else np.array(logprobs, np.float64),
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the answers of two servers to the same requests differ.

    Attributes:
        rows: items compared.
        largest_probability: largest absolute difference of a probability.
        largest_logprob: largest difference of a natural log-probability, see `LARGE_LOGPROB`; 0.0
            if none was compared.
        rank_changes: pairs of items of one request that stock separates by more than the
            tolerance and the extension orders the other way round.
        tolerance: upper limit of both differences.
    """

    rows: int
    largest_probability: float
    largest_logprob: float
    rank_changes: int
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the gate is green. It is red after a NaN, or if nothing was compared."""
        return (
            self.rows > 0
            and self.largest_probability <= self.tolerance
            and self.largest_logprob <= self.tolerance
            and self.rank_changes == 0
        )

    def merged_with(self, other: Agreement) -> Agreement:
        """The agreement over both sets of answers together."""
        return Agreement(
            self.rows + other.rows,
            float(np.maximum(self.largest_probability, other.largest_probability)),
            float(np.maximum(self.largest_logprob, other.largest_logprob)),
            self.rank_changes + other.rank_changes,
            max(self.tolerance, other.tolerance),
        )

    def __str__(self) -> str:
        return (
            f"{self.rows} rows, largest difference {self.largest_probability:.1e} in probability, "
            f"{self.largest_logprob:.1e} in log-probability (tolerance {self.tolerance:g}), "
            f"{self.rank_changes} rank changes"
        )

    def require(self, what: str) -> None:
        """Raise `GateError`, naming `what` was compared, unless the gate is green."""
        if not self.holds:
            raise GateError(f"{what}: stock and extension disagree: {self}")


def compare(
    stock: Mapping[int, bytes], extension: Mapping[int, bytes], tolerance: float
) -> Agreement:
    """Compare the answers to the requests that both servers answered, by request number.

    Raises:
        GateError: answers to one request differ in shape or in what they hold.
    """
    rows, rank_changes = 0, 0
    probability, logprob = [0.0], [0.0]
    for number in sorted(stock.keys() & extension.keys()):
        ours, theirs = Answer.from_body(extension[number]), Answer.from_body(stock[number])
        rows += len(theirs.scores)
        probability.append(_largest_difference(theirs.scores, ours.scores))
        rank_changes += _rank_changes(theirs.scores, ours.scores, tolerance)
        if (theirs.logprobs is None) != (ours.logprobs is None):
            raise GateError("only one of the two servers answered with log-probabilities")
        if theirs.logprobs is not None and ours.logprobs is not None:
            logprob.append(largest_logprob_difference(theirs.logprobs, ours.logprobs, tolerance))
    # numpy's maximum keeps a NaN; Python's max may lose it.
    return Agreement(
        rows, float(np.max(probability)), float(np.max(logprob)), rank_changes, tolerance
    )


def largest_logprob_difference(stock: Matrix, extension: Matrix, tolerance: float) -> float:
    """The largest difference of a natural log-probability, scaled as `LARGE_LOGPROB` says.

    Raises:
        GateError: the shapes differ.
    """
    is_half = tolerance >= TOLERANCE["bfloat16"]
    large = LARGE_LOGPROB_OF_HALF if is_half else LARGE_LOGPROB
    scale = np.maximum(1.0, np.abs(stock) / large)
    return _largest_difference(stock, extension, scale)


def _largest_difference(stock: Matrix, extension: Matrix, scale: Matrix | float = 1.0) -> float:
    if stock.shape != extension.shape:
        raise GateError(f"stock answered with shape {stock.shape}, extension {extension.shape}")
    return float(np.max(np.abs(stock - extension) / scale))


def _rank_changes(stock: Matrix, extension: Matrix, tolerance: float) -> int:
    """Count the pairs of rows that changed places, by the probability of the first label."""
    before = stock[:, 0, None] - stock[None, :, 0]
    after = extension[:, 0, None] - extension[None, :, 0]
    return int(np.count_nonzero((before > tolerance) & (after < 0)))


def difference(found: Any, wanted: Any, where: str = "") -> str:
    """Describe the difference between two answers read from JSON; empty if there is none.

    Numbers may differ by the rounding of float32, see `LARGE_LOGPROB`.

    Args:
        where: name of the compared part, put in front of the description.
    """
    said = f"{where}: {found!r:.200} instead of {wanted!r:.200}"
    if type(found) is not type(wanted):
        return said
    if isinstance(found, dict):
        if found.keys() != wanted.keys():
            return f"{where}: {found.keys() ^ wanted.keys()} are in one only"
        names = found.keys() - VOLATILE
        parts = ((found[each], wanted[each], f"{where}.{each}") for each in names)
    elif isinstance(found, list):
        if len(found) != len(wanted):
            return f"{where}: {len(found)} entries instead of {len(wanted)}"
        pairs = zip(found, wanted, strict=True)
        parts = ((one, other, f"{where}[{number}]") for number, (one, other) in enumerate(pairs))
    elif isinstance(found, float):
        close = TOLERANCE["float32"] * max(1.0, abs(wanted) / LARGE_LOGPROB)
        return "" if found == wanted or abs(found - wanted) <= close else said
    else:
        return "" if found == wanted else said
    return next(filter(None, (difference(*each) for each in parts)), "")
