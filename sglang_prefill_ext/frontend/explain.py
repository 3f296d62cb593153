"""Explains how one scoring request was served: the path, and the tokens and time that it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_prefill_ext.frontend.answers import Scored, Served
from sglang_prefill_ext.scheduling.stats import ExecutionClass
from sglang_prefill_ext.wire.parts import distinct_rows
from sglang_prefill_ext.wire.stock_reason import StockReason

_PACKED = {"path": "packed", "reason": None, "execution_class": ExecutionClass.ONE_SHOT}


def explain_packed(scored: Scored) -> dict[str, Any]:
    """Return what a packed request cost, ready for JSON.

    Tokens saved are those that separate prompts would have added. Times are in ms: from the
    arrival at the scheduler to the launch of the first forward, and from there to the answer.
    """
    rows, answer = scored.rows, scored.answer
    kept, _ = distinct_rows(rows)
    return {
        **_PACKED,
        "rows": rows.num_rows,
        "distinct_rows": kept.num_rows,
        "prompt_tokens": rows.num_prompt_tokens,
        "prefix_tokens": rows.prefix_len,
        "prefix_tokens_cached": answer.tokens_cached,
        "forwards": answer.forwards,
        "tokens_computed": answer.tokens_computed,
        "tokens_saved": rows.tokens_saved(answer.tokens_computed),
        "queue_ms": answer.queue_ms,
        "compute_ms": answer.compute_ms,
    }


def explain_vectors(served: Served) -> dict[str, Any]:
    """Return what a packed request for vectors cost, ready for JSON.

    Its prompts may share packed requests with those of other calls, so it has no prefix, forwards
    or computed tokens of its own.
    """
    return {
        **_PACKED,
        "rows": served.num_prompts,
        "prompt_tokens": served.num_tokens,
        "queue_ms": served.queue_s * 1e3,
        "compute_ms": served.compute_s * 1e3,
    }


def explain_stock(reason: StockReason) -> dict[str, Any]:
    """Return why a request took the stock path; only SGLang knows what it cost there."""
    return {"path": "stock", "reason": reason}


def experts_recently(schedulers: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return how full the blocks of each layer of experts were, ready for JSON.

    A scheduler looks at few forwards, and the counts arrive later. So these are of the
    forward that each scheduler looked at last, which seldom is one that served the request.

    Args:
        schedulers: their parts of the status page.

    Returns:
        Layers with counts; None if there are none.
    """
    return [
        {"dp_rank": scheduler["dp_rank"], "layer": number, **layer}
        for scheduler in schedulers
        for number, layer in enumerate(scheduler["experts"]["layers"])
        if layer["padded"]
    ] or None
