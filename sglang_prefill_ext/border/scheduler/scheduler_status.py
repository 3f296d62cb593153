"""The status of a scheduler's packed path, for the status page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sglang.srt.runtime_context import get_parallel

from sglang_prefill_ext.border import patches
from sglang_prefill_ext.border.model.alignment_hook import ALIGNMENTS
from sglang_prefill_ext.border.scheduler.packed_work import PackedWork
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.process.stages import STARTUP
from sglang_prefill_ext.scheduling.runtime import PackedRuntime
from sglang_prefill_ext.shared_device.placement import Placement
from sglang_prefill_ext.startup.answer_check import AnswerCheck


def status_of(scheduler: Any, work: PackedWork, config: PrefillOnlyConfig) -> dict[str, Any]:
    """Return one scheduler's part of the status page, ready for JSON."""
    runtime, setup = work.runtime, work.setup
    return {
        "dp_rank": get_parallel().dp_rank or 0,
        "packed": not runtime.declined_reason,
        "declined_reason": runtime.declined_reason,
        "known_answers": _known_answers(runtime, setup.check),
        "graphs": setup.graphs.as_dict(),
        "experts": {**setup.experts.as_dict(), "deep_gemm": ALIGNMENTS.as_dict()},
        "order": config.order,
        "forward_budget": asdict(runtime.policy.budget),
        "launch_tokens": runtime.policy.launch_tokens,
        "eager_tokens": runtime.policy.graphs.eager_tokens,
        "decode_step_tokens": work.policy.step_tokens,
        "queue": work.queue,
        "busy_s": runtime.stats.busy_s,
        "tokens_per_s": runtime.stats.tokens_per_s,
        "calibrated_tokens_per_s": round(setup.tokens_per_s, 1),
        "counters": runtime.stats.as_dict(),
        "iterations": {name: asdict(account) for name, account in work.accounts.of.items()},
        "memory": _memory(scheduler),
        "placement": asdict(Placement.of_this_process()),
        "startup": STARTUP.as_dict(),
        "patches": [asdict(state) for state in patches.states()],
    }


def _known_answers(runtime: PackedRuntime, check: AnswerCheck | None) -> dict[str, object]:
    if check is not None:
        return check.as_dict()
    return {"verdict": "declined" if runtime.declined_reason else "off"}


def _memory(scheduler: Any) -> dict[str, int]:
    """Slots of the stock pools; packed work must leave them as they were."""
    cache = scheduler.tree_cache
    return {
        "kv_slots_free": int(scheduler.token_to_kv_pool_allocator.available_size()),
        "kv_slots_evictable": int(cache.evictable_size()),
        "kv_slots_protected": int(cache.protected_size()),
        "request_rows_free": int(scheduler.req_to_token_pool.available_size()),
    }
