"""Choose a block for each layer from the rows that its experts are expected to get."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.config import MoePolicy
from sglang_prefill_ext.moe.blocks import Entry, padded_rows

RATIO = 1.5
"""If padded over real rows exceed this, blocks of 64 take the place of blocks of 128. Production
systems have published this rule."""

_LARGE, _SMALL = 128, 64


class BlockTime(NamedTuple):
    """The time of a layer's experts as a linear function of their padded rows.

    Attributes:
        fixed_s: seconds apart from the rows.
        row_s: seconds of each padded row, at least 0; > 0 if measured.
    """

    fixed_s: float
    row_s: float


Times = Mapping[Entry, BlockTime]


class Pair(NamedTuple):
    """Two entries of which the device takes the one with the least time, the first on a tie.

    Attributes:
        first, second: entries with different blocks.
        first_time, second_time: the times that the device compares, both in seconds or in rows.
    """

    first: Entry
    second: Entry
    first_time: BlockTime
    second_time: BlockTime

    def taken(self, rows: NDArray[Any]) -> Entry:
        """The entry that the device takes if the experts get these rows, ``[experts]``."""
        times = {self.first: self.first_time, self.second: self.second_time}
        (entry,) = _least_time(rows[None], (self.first, self.second), times)
        return entry


Choice = Entry | Pair


def in_effect(policy: MoePolicy, times: Times) -> MoePolicy:
    """Resolve a policy: `AUTO` and `LEAST_TIME` become `PADDING_RATIO` if there are no times.

    With times, `AUTO` becomes `LEAST_TIME`.
    """
    if policy in (MoePolicy.AUTO, MoePolicy.LEAST_TIME):
        return MoePolicy.LEAST_TIME if times else MoePolicy.PADDING_RATIO
    return policy


def choose(
    policy: MoePolicy, rows: NDArray[Any], candidates: Sequence[Entry], times: Times
) -> list[Entry]:
    """Choose an entry for each layer.

    Args:
        policy: see `in_effect`.
        rows: expected rows of each expert; ``[layers, experts]``.
        candidates: entries to choose from; the first is SGLang's own choice.
        times: of measured entries; if there are any, only measured entries replace SGLang's choice.
    """
    policy = in_effect(policy, times)
    if policy is MoePolicy.LEAST_TIME:
        return _least_time(rows, candidates, times)
    if policy is MoePolicy.PADDING_RATIO:
        return _padding_ratio(rows, candidates, times)
    return [candidates[0]] * len(rows)


def choose_pairs(
    policy: MoePolicy,
    rows: NDArray[Any],
    candidates: Sequence[Entry],
    times: Times,
    alone: Collection[Entry] = (),
) -> list[Choice]:
    """Choose for each layer the two entries between which the device is to choose.

    By `LEAST_TIME` they are the two with the least predicted time, the fastest first; by
    `PADDING_RATIO` SGLang's choice and the one with the smaller block. If there is only one entry
    to choose from, it is returned alone. If the two cannot be launched together, the one that
    `choose` would take is returned alone.

    Args:
        policy, rows, candidates, times: as in `choose`; the policy is not `STOCK`.
        alone: entries that cannot be launched together with another.
    """
    if in_effect(policy, times) is MoePolicy.LEAST_TIME:
        chosen = _two_fastest(rows, candidates, times)
    else:
        chosen = _both_of_ratio(rows, candidates, times)
    return [
        each.taken(own) if isinstance(each, Pair) and not {*each[:2]}.isdisjoint(alone) else each
        for each, own in zip(chosen, rows, strict=True)
    ]


def predicted_s(rows: NDArray[Any], entry: Entry, times: Times) -> NDArray[np.float64]:
    """Predicted seconds of each layer's experts, ``[...]``, from `rows`, ``[..., experts]``.

    Raises:
        KeyError: the entry was not measured.
    """
    time = times[entry]
    return time.fixed_s + time.row_s * padded_rows(rows, entry.block)


def _both_of_ratio(rows: NDArray[Any], candidates: Sequence[Entry], times: Times) -> list[Choice]:
    stock, small = candidates[0], _smaller(candidates, times)
    if small is None:
        return [stock] * len(rows)
    # The "times" are rows: those padded to the stock block, against the limit above which the small
    # block is taken.
    return [
        Pair(stock, small, BlockTime(0.0, 1.0), BlockTime(limit, 0.0))
        for limit in (RATIO * rows.sum(axis=-1)).tolist()
    ]


def _least_time(rows: NDArray[Any], candidates: Sequence[Entry], times: Times) -> list[Entry]:
    measured = _measured(candidates, times)
    if candidates[0] not in measured:  # then no other one is known to be faster
        return [candidates[0]] * len(rows)
    # On a tie the first one wins, which is SGLang's.
    least = np.argmin([predicted_s(rows, entry, times) for entry in measured], axis=0)
    return [measured[index] for index in least.tolist()]


def _two_fastest(rows: NDArray[Any], candidates: Sequence[Entry], times: Times) -> list[Choice]:
    measured = _measured(candidates, times)
    if candidates[0] not in measured or len(measured) == 1:
        return [candidates[0]] * len(rows)
    predicted = np.array([predicted_s(rows, entry, times) for entry in measured])
    order = np.argsort(predicted, axis=0, kind="stable")[:2].T.tolist()
    pairs = ((measured[first], measured[second]) for first, second in order)
    return [Pair(*pair, *(times[entry] for entry in pair)) for pair in pairs]


def _measured(candidates: Sequence[Entry], times: Times) -> Sequence[Entry]:
    return [entry for entry in candidates if entry in times]


def _padding_ratio(rows: NDArray[Any], candidates: Sequence[Entry], times: Times) -> list[Entry]:
    stock, small = candidates[0], _smaller(candidates, times)
    if small is None:
        return [stock] * len(rows)
    over = padded_rows(rows, _LARGE) > RATIO * rows.sum(axis=-1)
    return [small if each else stock for each in over.tolist()]


def _smaller(candidates: Sequence[Entry], times: Times) -> Entry | None:
    """The entry with the small block, if SGLang's choice has the large one; else None.

    If there are times, entries without one have failed and are not used.
    """
    if candidates[0].block != _LARGE:
        return None
    usable = _measured(candidates, times) if times else candidates
    return next((entry for entry in usable if entry.block == _SMALL), None)
