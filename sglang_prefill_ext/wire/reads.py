"""What a forward reads: labels, the most probable tokens or vectors, read by read.

Reads of several requests follow each other, each with its kind. Module `read` defines what one
request asks for, and in which order its answer has the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.sampling import Draw, Sampling

_DRAWS = len(Draw)

Table = TypeVar("Table")
Values: TypeAlias = NDArray[Any]


class Best(NamedTuple, Generic[Table]):
    """Values of the most probable tokens, ``[reads, n]`` each, in the order of the answer.

    Attributes:
        log_prob, token: of the most probable token, or of the one that was drawn; n is 1.
        top_log_probs, top_tokens: of the `num_best - 1` most probable ones. Ids are float32, too,
            so they are exact below 2 ** 24.
    """

    log_prob: Table
    token: Table
    top_log_probs: Table
    top_tokens: Table

    @classmethod
    def of(cls, table: Values) -> Best[Values]:
        """Split a table ``[reads, 2 * num_best]``; all parts are empty if `num_best` is 0."""
        half = 1 + table.shape[1] // 2
        return Best(table[:, :1], table[:, 1:2], table[:, 2:half], table[:, half:])


def values_per_read(num_labels: int, num_best: int) -> int:
    return num_labels + 2 * num_best


def answer_order(lens: Int32Array, more: int) -> NDArray[np.int64]:
    """For every value of an answer, its index where all labels' values come before all others.

    Args:
        lens: number of labels of each read, ``[reads]``.
        more: number of other values of each read.
    """
    reads, labels = len(lens), int(lens.sum())
    order = np.full(labels + more * reads, -1)
    # In the answer, a label follows all labels before it and the other values of earlier reads.
    order[np.arange(labels) + more * np.repeat(np.arange(reads), lens)] = np.arange(labels)
    order[order < 0] = np.arange(labels, len(order))
    return order


class LabelKind(NamedTuple):
    """What reads must have in common to be read in one step; arrays hold it as `number`."""

    num_best: int
    normalised: bool
    draw: Draw

    @classmethod
    def of(cls, number: int) -> LabelKind:
        rest, draw = divmod(number, _DRAWS)
        return cls(rest // 2, bool(rest % 2), Draw(draw))

    @property
    def number(self) -> int:
        return (2 * self.num_best + self.normalised) * _DRAWS + self.draw


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """What is asked for at every read of a forward, or of a part of one.

    Attributes:
        label_ids: labels, read by read; int32; empty where vectors are read.
        lens: how many labels each read has, or how many numbers its vector; int32 ``[reads]``.
        kinds: `LabelKind.number` of each read; int64 ``[reads]``.
        sampling: of the reads after which a token is drawn, in their order; None without any.
    """

    label_ids: Int32Array
    lens: Int32Array
    kinds: NDArray[np.int64]
    sampling: Sampling | None

    @classmethod
    def joined(cls, parts: Sequence[Reads]) -> Reads:
        """Concatenate at least one part, in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.label_ids for part in parts]),
            np.concatenate([part.lens for part in parts]),
            np.concatenate([part.kinds for part in parts]),
            Sampling.joined([part.sampling for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.lens)

    def __getitem__(self, chosen: NDArray[np.bool_]) -> Reads:
        """Some reads."""
        ids, sampling = self.label_ids, self.sampling
        if len(ids):
            ids = ids[np.repeat(chosen, self.lens)]
        if sampling is not None:
            sampling = sampling[chosen[self.kinds % _DRAWS > 0]]
        return Reads(ids, self.lens[chosen], self.kinds[chosen], sampling)

    @property
    def value_lens(self) -> NDArray[np.int64]:
        """Number of values of each read; int64 ``[reads]``."""
        return self.lens + 2 * (self.kinds // (2 * _DRAWS))

    @property
    def num_values(self) -> int:
        return int(self.value_lens.sum())

    def by_kind(self) -> list[tuple[LabelKind, NDArray[np.bool_]]]:
        """Every kind, and which reads are of it, bool ``[reads]``; reads without values in none."""
        asked = self.value_lens > 0
        numbers = sorted(set(self.kinds[asked].tolist()))
        return [(LabelKind.of(number), asked & (self.kinds == number)) for number in numbers]
