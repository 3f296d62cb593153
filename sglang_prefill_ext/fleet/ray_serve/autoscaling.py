"""The fleet's autoscaling policy for Ray Serve: how many engines the outstanding tokens need.

Serve pickles this module by value, so it imports nothing of ours. Serve itself applies the bounds,
and waits until another number was wanted for long enough (`upscale_delay_s`, `downscale_delay_s`).
"""

from __future__ import annotations

import math
from typing import Any

TOKENS = "outstanding_tokens"
"""The name under which an engine reports how many tokens it has yet to compute."""


class OutstandingTokens:
    """The policy that Serve calls: so many engines that each has `target_tokens` tokens."""

    def __init__(self, target_tokens: float) -> None:
        self._target = target_tokens

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        # Of each engine that reports, averaged over Serve's window.
        outstanding = context.aggregated_metrics.get(TOKENS, {}).values()
        if not outstanding:
            return context.target_num_replicas, {}
        return max(1, math.ceil(sum(outstanding) / self._target)), {}
