"""Compare two JSON answers, except for fields that always differ (pure)."""

from __future__ import annotations

from typing import Any

from bench.gate import LARGE_LOGPROB, TOLERANCE

VOLATILE = {
    *("id", "e2e_latency", "response_sent_to_client_ts", "created", "cached_tokens"),
    *("cached_tokens_details", "dp_rank"),
}
"""Fields that differ between calls, or that may differ between the paths."""


def difference(found: Any, wanted: Any, where: str = "") -> str:
    """Describe the difference between two answers read from JSON; empty if there is none.

    Numbers may differ by the rounding of float32, see `gate.LARGE_LOGPROB`.

    Args:
        where: name of the compared part, put in front of the description.
    """
    said = f"{where}: {found!r:.200} instead of {wanted!r:.200}"
    if type(found) is not type(wanted):
        return said
    if isinstance(found, dict):
        if found.keys() != wanted.keys():
            return f"{where}: {found.keys() ^ wanted.keys()} are in one only"
        names = found.keys() - VOLATILE
        parts = ((found[each], wanted[each], f"{where}.{each}") for each in names)
    elif isinstance(found, list):
        if len(found) != len(wanted):
            return f"{where}: {len(found)} entries instead of {len(wanted)}"
        pairs = zip(found, wanted, strict=True)
        parts = ((one, other, f"{where}[{number}]") for number, (one, other) in enumerate(pairs))
    elif isinstance(found, float):
        close = TOLERANCE["float32"] * max(1.0, abs(wanted) / LARGE_LOGPROB)
        return "" if found == wanted or abs(found - wanted) <= close else said
    else:
        return "" if found == wanted else said
    return next(filter(None, (difference(*each) for each in parts)), "")
