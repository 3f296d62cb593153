"""Counts the tokens of packed forwards in SGLang's own metrics of a scheduler."""

from __future__ import annotations

from typing import Any


class TokenCounters:
    """Counts the tokens of packed forwards with the collector of a scheduler."""

    def __init__(self, collector: Any) -> None:
        self._collector = collector
        self._computed = 0
        self._cached = 0

    def update(self, computed: int, cached: int) -> None:
        """Count what was added since the last call.

        Args:
            computed: tokens that went through the model since the start.
            cached: tokens that the prefix cache had instead.
        """
        more = computed - self._computed, cached - self._cached
        self._computed, self._cached = computed, cached
        self._collector.increment_realtime_tokens(None, *more)
        self._collector.increment_effective_prefill_tokens(*more, 0, 0)
