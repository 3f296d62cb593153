"""What rows cost on a replica: launches, tokens and attention pairs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rows: TypeAlias = NDArray[np.int64]
"""Row numbers of a request, ascending; int64 ``[rows]``."""

UNLIMITED = 1 << 62

UNMEASURED_TOKENS_PER_S = 10_000.0
"""Assumed for a replica that packs nothing; it is sent no part."""


class Computed(NamedTuple):
    """What a scheduler has computed since it started.

    Attributes:
        tokens: of all forwards, and for each the `launch_tokens` that a launch takes as long as.
        busy_s: the time of all forwards.
    """

    tokens: int
    busy_s: float

    @classmethod
    def of_status(cls, scheduler: Mapping[str, Any]) -> Computed:
        """Read one entry of ``schedulers`` on an engine's status page."""
        counters = scheduler["counters"]
        launches = scheduler["launch_tokens"] * counters["forwards"]
        return cls(counters["tokens_computed"] + launches, scheduler["busy_s"])


@dataclass(frozen=True, slots=True)
class Speed:
    """How long a replica takes: ``launches * launch_s + tokens * token_s + pairs * pair_s``.

    Attributes:
        launch_s: what a forward takes besides its tokens, >= 0.
        token_s: one token in all layers, > 0.
        pair_s: one query token attending to one key in all layers, >= 0.
        max_forward_tokens: of one forward; more tokens are several launches.
    """

    launch_s: float
    token_s: float
    pair_s: float = 0.0
    max_forward_tokens: int = UNLIMITED

    @classmethod
    def of_status(cls, scheduler: Mapping[str, Any], pair_tokens: float = 0.0) -> Speed:
        """Read the speed from one entry of ``schedulers`` on an engine's status page.

        The engine has measured at start that a launch takes as long as `launch_tokens` tokens. So
        the time of a token is the time of all forwards, divided by their tokens and `launch_tokens`
        for each of them. If nothing was computed yet, it is the time that was measured at start.

        Args:
            pair_tokens: see `Offer`; engines do not report attention separately.
        """
        tokens, busy_s = Computed.of_status(scheduler)
        calibrated = scheduler["calibrated_tokens_per_s"] or UNMEASURED_TOKENS_PER_S
        token_s = busy_s / tokens if tokens and busy_s else 1 / calibrated
        budget = scheduler["forward_budget"]["max_tokens"]
        launch_s = scheduler["launch_tokens"] * token_s
        return cls(launch_s, token_s, pair_tokens * token_s, budget)

    def slowed(self, ratio: float) -> Speed:
        """The same replica where everything takes `ratio` times as long."""
        return replace(
            self,
            launch_s=self.launch_s * ratio,
            token_s=self.token_s * ratio,
            pair_s=self.pair_s * ratio,
        )

    def seconds(self, tokens: int, pairs: int) -> float:
        """Seconds of one request on an idle replica; 0 for no tokens."""
        launches = -(-tokens // self.max_forward_tokens)
        return launches * self.launch_s + tokens * self.token_s + pairs * self.pair_s


@dataclass(frozen=True, slots=True, eq=False)
class RowCosts:
    """Tokens and attention pairs of a request's rows, which are the same on every replica.

    The prefix attends to itself causally. Every token of a suffix attends to the whole prefix and
    causally to its own row.

    Attributes:
        prefix_tokens: tokens that all rows share; every part computes them once.
        tokens: of every suffix; int64 ``[rows]``, each >= 1.
        pairs: of every suffix; int64 ``[rows]``.
    """

    prefix_tokens: int
    tokens: NDArray[np.int64]
    pairs: NDArray[np.int64]

    @classmethod
    def of(cls, prefix_len: int, suffix_lens: ArrayLike) -> RowCosts:
        tokens = np.asarray(suffix_lens, dtype=np.int64)
        return cls(prefix_len, tokens, tokens * prefix_len + tokens * (tokens + 1) // 2)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Of all suffixes."""
        return int(self.tokens.sum())

    @property
    def num_pairs(self) -> int:
        """Of all suffixes."""
        return int(self.pairs.sum())

    @property
    def prefix_pairs(self) -> int:
        return self.prefix_tokens * (self.prefix_tokens + 1) // 2

    def rows_s(self, speed: Speed) -> NDArray[np.float64]:
        """Seconds that each suffix adds to a forward; float64 ``[rows]``."""
        return self.tokens * speed.token_s + self.pairs * speed.pair_s

    def part_s(
        self, speed: Speed, rows: Rows | None = None, *, prefix_cached: bool = False
    ) -> float:
        """Seconds of a part on an idle replica, including its launches and its prefix.

        Args:
            rows: of the part; None for all rows.
            prefix_cached: the replica has the K/V of the prefix.
        """
        if rows is None or len(rows) == len(self):
            tokens, pairs = self.num_tokens, self.num_pairs
        else:
            tokens, pairs = int(self.tokens[rows].sum()), int(self.pairs[rows].sum())
        if not prefix_cached:
            tokens, pairs = tokens + self.prefix_tokens, pairs + self.prefix_pairs
        return speed.seconds(tokens, pairs)
