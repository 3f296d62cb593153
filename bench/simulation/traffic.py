"""Random traffic of single prompts of mixed lengths, and the cost model of serving them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels

LENGTHS = (128, 512, 2048, 8192)
SHARED_PREFIXES = 50  # per length; their frequencies follow Zipf's law, 1 / rank
_NOTHING = int_array([])


@dataclass(frozen=True, slots=True)
class CostModel:
    """Milliseconds of one forward. The defaults are a guess at a small model on a large GPU."""

    launch_ms: float = 6.0
    ms_per_token: float = 0.0025
    ms_per_row: float = 0.0

    @property
    def launch_tokens(self) -> int:
        """Cost of launching a forward, as the number of tokens computed in the same time."""
        return round(self.launch_ms / self.ms_per_token)

    def forward_ms(self, tokens: Any, rows: Any = 1) -> Any:
        """Time of a forward, or of many, given as arrays."""
        return self.launch_ms + self.ms_per_token * tokens + self.ms_per_row * rows


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests in order of arrival.

    Attributes:
        load: 1 is what the device can just serve if every request has a forward of its own and
            nothing is cached.
        shared: share of the requests that begin with a shared prefix of half their length.
        arrival_ms: arrival time of each request.
        length_class: index of each request's length in `LENGTHS`.
        prefix: number of its shared prefix among those for its length; -1 without one.
    """

    load: float
    shared: float
    arrival_ms: NDArray[np.float64]
    length_class: NDArray[np.int64]
    prefix: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every request."""
        return np.array(LENGTHS).take(self.length_class)

    def rows(self, number: int) -> PackedRows:
        """Return a request as the runtime takes it: one row, read at its last token.

        Without a shared prefix, the prefix is empty, so that nothing of it is cached.
        """
        length_class, prefix = int(self.length_class[number]), int(self.prefix[number])
        length = LENGTHS[length_class]
        tokens = np.zeros(length, dtype=np.int32)
        prefix_len = length // 2 if prefix >= 0 else 0
        tokens[:prefix_len] = 1 + prefix * len(LENGTHS) + length_class
        return PackedRows(
            tokens, prefix_len, int_array([length - prefix_len]), Labels(int_array([1]))
        )


def draw_traffic(
    load: float, requests: int, cost: CostModel, seed: int, shared: float = 0.0
) -> Traffic:
    """Draw Poisson arrivals; every length is equally frequent.

    Arrivals and lengths are the same whatever `shared` is.
    """
    rng = np.random.default_rng(seed)
    mean_gap_ms = cost.forward_ms(np.array(LENGTHS)).mean() / load
    arrivals = np.cumsum(rng.exponential(mean_gap_ms, requests))
    length_class = rng.integers(0, len(LENGTHS), requests)
    weights = 1 / np.arange(1, SHARED_PREFIXES + 1)
    prefix = rng.choice(SHARED_PREFIXES, requests, p=weights / weights.sum())
    prefix[rng.random(requests) >= shared] = -1
    return Traffic(load, shared, arrivals, length_class, prefix)
