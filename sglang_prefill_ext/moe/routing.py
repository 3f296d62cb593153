"""Routing statistics: average shares of experts, and how full the blocks of a forward were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.moe.blocks import padded_rows

NEWEST = 0.25
"""The weight of the newest forward in the average."""


class RoutingAverage:
    """The average share of each layer's rows that each of its experts gets.

    Before a layer's first counts, its shares follow the quantiles of an exponential distribution:
    some experts get several times the mean, many get little. Equal shares would be a bad guess: all
    experts would then fill their last block equally, unlike in any real routing.
    """

    def __init__(self, layers: int, experts: int) -> None:
        spread = -np.log(1 - (np.arange(experts) + 0.5) / experts)
        self._shares = np.tile(spread / spread.sum(), (layers, 1))
        self._known = np.zeros(layers, bool)

    def add(self, counts: NDArray[Any]) -> None:
        """Add the counts of one forward, ``[layers, experts]``; layers without rows do not change.

        Raises:
            ValueError: the counts have another shape.
        """
        if counts.shape != self._shares.shape:
            raise ValueError(
                f"rows of {counts.shape} layers and experts, of a model of {self._shares.shape}"
            )
        totals = counts.sum(axis=-1)
        seen = totals > 0
        newest = counts[seen] / totals[seen, None]
        weight = np.where(self._known[seen], NEWEST, 1.0)[:, None]
        self._shares[seen] += weight * (newest - self._shares[seen])
        self._known |= seen

    def rows(self, total: float) -> NDArray[np.float64]:
        """Expected rows of each expert, ``[layers, experts]``, if every layer has `total` rows."""
        return self._shares * total


class LayerBalance(NamedTuple):
    """How full the blocks of one layer were in one forward.

    Attributes:
        padded: computed rows over real rows, at least 1; 0 if nothing was counted yet.
        stock_padded: the same with the block of SGLang's own choice.
        busiest_share: the share of all rows that the busiest expert has.
    """

    padded: float = 0.0
    stock_padded: float = 0.0
    busiest_share: float = 0.0


def balance_of(counts: NDArray[Any], blocks: Sequence[int], stock_block: int) -> list[LayerBalance]:
    """Return the balance of each layer in one forward.

    Args:
        counts: rows of each expert; ``[layers, experts]``.
        blocks: the block of each layer, in rows.
        stock_block: the block of SGLang's own choice, in rows.
    """
    return [
        LayerBalance(
            float(padded_rows(rows, block) / total),
            float(padded_rows(rows, stock_block) / total),
            float(rows.max() / total),
        )
        if (total := int(rows.sum()))
        else LayerBalance()
        for rows, block in zip(counts, blocks, strict=True)
    ]
