"""Whether two answers are the same, as far as they can be (pure)."""

from __future__ import annotations

from typing import Any

from bench.gate import LARGE_LOGPROB, TOLERANCE

VOLATILE = {
    *("id", "e2e_latency", "response_sent_to_client_ts", "created", "cached_tokens"),
    *("cached_tokens_details", "dp_rank"),
}
"""Fields that differ from call to call, or from path to path by right."""


def difference(found: Any, wanted: Any, where: str = "") -> str:
    """Say where two answers differ, read from JSON; empty if they do not.

    Numbers may differ by what float32 leaves, see `gate.LARGE_LOGPROB`.

    Args:
        where: names the answers.
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
