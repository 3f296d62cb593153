"""The fleet's autoscaling policy for Ray Serve: how many engines the outstanding tokens need.

Serve pickles this module by value, so it imports nothing of ours. Serve itself applies the bounds,
and waits until another number was wanted for long enough (`upscale_delay_s`, `downscale_delay_s`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

TOKENS = "outstanding_tokens"
"""The name under which an engine reports how many tokens it has yet to compute."""


def wanted(outstanding: Collection[float], target: float, current: int) -> int:
    """Return the number of engines with which each has `target` tokens.

    Args:
        outstanding: tokens of each engine that reports, averaged over Serve's window.
        target: outstanding tokens that an engine should have.
        current: engines that there should be now; kept while none reports.
    """
    if not outstanding:
        return current
    return max(1, math.ceil(sum(outstanding) / target))


class OutstandingTokens:
    """The policy that Serve calls; see `wanted`."""

    def __init__(self, target_tokens: float) -> None:
        self._target = target_tokens

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        reported = context.aggregated_metrics.get(TOKENS, {}).values()
        return wanted(reported, self._target, context.target_num_replicas), {}
