"""What is known of how the layers of a model route: averages, and what the last forwards padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.moe.blocks import padded_rows

NEWEST = 0.25
"""The weight of the newest forward in the average."""


class RoutingAverage:
    """The share of each layer's rows that each of its experts gets.

    Until a layer's first counts have come its shares are spread as exponential draws are: some
    experts get several times the mean, many get little. Even shares would all fill their last
    block alike, which no real routing does.
    """

    def __init__(self, layers: int, experts: int) -> None:
        spread = -np.log(1 - (np.arange(experts) + 0.5) / experts)
        self._shares = np.tile(spread / spread.sum(), (layers, 1))
        self._known = np.zeros(layers, bool)

    def add(self, counts: NDArray[Any]) -> None:
        """Take up one forward; ``[layers, experts]``. Layers without rows stay as they are.

        Raises:
            ValueError: the counts are of another model.
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
        """The rows expected of a forward; ``[layers, experts]``, `total` of each layer."""
        return self._shares * total


class LayerBalance(NamedTuple):
    """How full the blocks of one layer were.

    Attributes:
        padded: rows computed over real rows, at least 1; 0 before the first look.
        stock_padded: with the block that SGLang's own choice would have had.
        busiest_share: of all rows, that of the expert with the most.
    """

    padded: float = 0.0
    stock_padded: float = 0.0
    busiest_share: float = 0.0


def balance_of(counts: NDArray[Any], blocks: Sequence[int], stock_block: int) -> list[LayerBalance]:
    """Look at one forward.

    Args:
        counts: rows of each expert; ``[layers, experts]``.
        blocks: what each layer was computed in.
        stock_block: what SGLang's own choice would have been.
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
