"""Says in one sentence which parallelism to take, and why. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sglang_prefill_ext.sizing.parallelism import Forecast, Load

_EQUAL = 0.02  # relative difference of latencies that predictions cannot tell apart


def advice(found: Sequence[Forecast], load: Load) -> str:
    """Return the sentence.

    Args:
        found: of `forecasts`, at least one.
    """
    best, *others = found
    if best.why_not:
        return f"Nothing fits: {best.parallelism}: {best.why_not}. Take more or larger GPUs."
    if math.isinf(best.latency_s):
        most = _most(found)
        return (
            f"No division serves {load.rate:g} requests/s; {most.parallelism} reaches "
            f"{most.most_requests_per_s:.1f}. Take more GPUs."
        )
    others = [each for each in others if not each.why_not]
    if not others:
        rest = " All other divisions do not fit." if len(found) > 1 else ""
        return f"Take {best.parallelism}: {best.latency_s * 1e3:.1f} ms a request.{rest}"
    second = others[0]
    if second.latency_s < best.latency_s * (1 + _EQUAL):
        most = _most([best, second])
        return (
            f"Take {most.parallelism}: {best.parallelism} and {second.parallelism} take equally "
            f"long, and it serves the most, {most.most_requests_per_s:.1f} requests/s."
        )
    if math.isinf(second.latency_s):
        return f"Take {best.parallelism}: no other division serves {load.rate:g} requests/s."
    return (
        f"Take {best.parallelism}: {best.latency_s * 1e3:.1f} ms a request; {second.parallelism} "
        f"takes {second.latency_s * 1e3:.1f}, {_why(best, second)}."
    )


def _most(found: Sequence[Forecast]) -> Forecast:
    return max(
        (each for each in found if not each.why_not), key=lambda each: each.most_requests_per_s
    )


def _why(best: Forecast, second: Forecast) -> str:
    """What makes up most of the difference: waiting for others, or the request itself."""
    wait_s, longer_wait_s = (each.latency_s - each.idle_s for each in (best, second))
    if longer_wait_s - wait_s > second.idle_s - best.idle_s:
        return (
            f"as it serves up to {second.most_requests_per_s:.1f} requests/s, "
            f"not {best.most_requests_per_s:.1f}"
        )
    spent, needs = second.longest.spent, best.longest.spent
    computing = max(needs.get("arithmetic", 0.0), needs.get("memory", 0.0))
    needs |= {"arithmetic": computing, "memory": computing}
    name = max(spent, key=lambda each: spent[each] - needs.get(each, 0.0))
    return f"of which {spent[name] * 1e3:.1f} for {name}"
