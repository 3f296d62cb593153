"""How one scoring request was served, for whoever wonders what it cost."""

from __future__ import annotations

from typing import Any

from sglang_prefill_ext.frontend.score.score_frontend import Scored
from sglang_prefill_ext.scheduling.execution import ExecutionClass
from sglang_prefill_ext.wire.distinct import distinct_rows
from sglang_prefill_ext.wire.stock_reason import StockReason


def explain_packed(scored: Scored) -> dict[str, Any]:
    """Return what a packed request cost, ready for JSON.

    Tokens saved are those that separate prompts would have added. Times are in ms: from the
    arrival at the scheduler to the launch of the first forward, and from there to the answer.
    """
    rows, answer = scored.rows, scored.answer
    kept, _ = distinct_rows(rows)
    return {
        "path": "packed",
        "reason": None,
        "execution_class": ExecutionClass.ONE_SHOT,
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


def explain_stock(reason: StockReason) -> dict[str, Any]:
    """Return why a request took the stock path; what it cost there is SGLang's to say."""
    return {"path": "stock", "reason": reason}
