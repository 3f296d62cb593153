"""How many engines the outstanding tokens need: Serve's autoscaling policy of the fleet.

Serve pickles this module by value, so it imports nothing of ours. Serve itself applies the bounds
and waits until a wish has lasted (`upscale_delay_s`, `downscale_delay_s`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

TOKENS = "outstanding_tokens"
"""By this name an engine reports what it has yet to compute."""


def wanted(outstanding: Collection[float], target: float, current: int) -> int:
    """Engines with which each has the target.

    Args:
        outstanding: tokens of each engine that reports, averaged over Serve's window.
        target: tokens of an engine.
        current: engines that there should be now; kept while none reports.
    """
    if not outstanding:
        return current
    return max(1, math.ceil(sum(outstanding) / target))


class OutstandingTokens:
    """See `wanted`; `target_tokens` is the target."""

    def __init__(self, target_tokens: float) -> None:
        self._target = target_tokens

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        reported = context.aggregated_metrics.get(TOKENS, {}).values()
        return wanted(reported, self._target, context.target_num_replicas), {}
