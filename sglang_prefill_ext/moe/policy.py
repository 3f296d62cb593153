"""Choose a block for each layer from the rows that its experts are expected to get."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.config import MoePolicy
from sglang_prefill_ext.moe.blocks import Entry, padded_rows
from sglang_prefill_ext.moe.routing import RoutingAverage

RATIO = 1.5
"""If padded over real rows exceed this, blocks of 64 take the place of blocks of 128. Production
systems have published this rule."""

LARGE, SMALL = 128, 64
"""Rows of blocks, and the two alignments that DeepGEMM's kernels support on Hopper, the first by
default; see ``docs/moe.md``."""


class BlockTime(NamedTuple):
    """The time of a layer's experts as a linear function of their padded rows.

    Attributes:
        fixed_s: seconds apart from the rows.
        row_s: seconds of each padded row, at least 0; > 0 if measured.
    """

    fixed_s: float
    row_s: float

    def seconds(self, rows: NDArray[Any], block: int) -> NDArray[np.float64]:
        """Predicted seconds, ``[...]``, of `rows`, ``[..., experts]``, in blocks of that size."""
        return self.fixed_s + self.row_s * padded_rows(rows, block)


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
        first = self.first_time.seconds(rows, self.first.block)
        second = self.second_time.seconds(rows, self.second.block)
        return self.first if first <= second else self.second


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
        fastest = _two_fastest(rows, candidates, times)
        return [each.first if isinstance(each, Pair) else each for each in fastest]
    if policy is MoePolicy.PADDING_RATIO:
        return _padding_ratio(rows, candidates, times)
    return [candidates[0]] * len(rows)


@lru_cache(maxsize=4096)
def alignment_for(policy: MoePolicy, rows: int, experts: int) -> int:
    """Return `LARGE` or `SMALL` as DeepGEMM's alignment for one matrix product.

    SGLang asks without saying for which layer. So the routing is taken to be that of a layer for
    which nothing was counted, see `RoutingAverage`. There are no measured times.

    Args:
        rows: of all experts together.
        experts: number of experts on this device, at least one.
    """
    expected = RoutingAverage(1, experts).rows(rows)
    (chosen,) = choose(policy, expected, [Entry(rows, LARGE), Entry(rows, SMALL)], {})
    return chosen.block


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


def _two_fastest(rows: NDArray[Any], candidates: Sequence[Entry], times: Times) -> list[Choice]:
    measured = _measured(candidates, times)
    # If SGLang's choice was not measured, no other one is known to be faster.
    if candidates[0] not in measured or len(measured) == 1:
        return [candidates[0]] * len(rows)
    # On a tie the first one wins, which is SGLang's.
    predicted = np.array([times[entry].seconds(rows, entry.block) for entry in measured])
    order = np.argsort(predicted, axis=0, kind="stable")[:2].T.tolist()
    pairs = ((measured[first], measured[second]) for first, second in order)
    return [Pair(*pair, *(times[entry] for entry in pair)) for pair in pairs]


def _measured(candidates: Sequence[Entry], times: Times) -> Sequence[Entry]:
    return [entry for entry in candidates if entry in times]


def _padding_ratio(rows: NDArray[Any], candidates: Sequence[Entry], times: Times) -> list[Entry]:
    stock, small = candidates[0], _smaller(candidates, times)
    if small is None:
        return [stock] * len(rows)
    over = padded_rows(rows, LARGE) > RATIO * rows.sum(axis=-1)
    return [small if each else stock for each in over.tolist()]


def _smaller(candidates: Sequence[Entry], times: Times) -> Entry | None:
    """The entry with the small block, if SGLang's choice has the large one; else None.

    If there are times, entries without one have failed and are not used.
    """
    if candidates[0].block != LARGE:
        return None
    usable = _measured(candidates, times) if times else candidates
    return next((entry for entry in usable if entry.block == SMALL), None)
