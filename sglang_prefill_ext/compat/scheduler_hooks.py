"""Hooks in SGLang's scheduler process: packed work beside the stock batch flow."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from sglang.srt.runtime_context import get_parallel

from sglang_prefill_ext.compat.activation import config_of
from sglang_prefill_ext.compat.capability import declined_reason
from sglang_prefill_ext.compat.messages import (
    PackedScoreReq,
    PackedScoreResult,
    PackedStatusReq,
    PackedStatusResult,
)
from sglang_prefill_ext.compat.model import SglangModel
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.oneshot.executor import PackedExecutor
from sglang_prefill_ext.oneshot.job import Job, JobResult
from sglang_prefill_ext.oneshot.policy import policy_of
from sglang_prefill_ext.oneshot.runtime import PackedRuntime
from sglang_prefill_ext.patching import engine

logger = logging.getLogger(__name__)

_ATTRIBUTE = "_prefill_only_runtime"

# A process runs one scheduler; its load report has no other way to reach it.
_process_runtime: PackedRuntime | None = None


def attach_runtime(_result: None, scheduler: Any) -> None:
    """AFTER `Scheduler.init_request_dispatcher`: the model and the streams exist by then."""
    global _process_runtime
    config = config_of(scheduler.server_args)
    if config is None:
        return
    runtime = _process_runtime = _build_runtime(scheduler, config)
    setattr(scheduler, _ATTRIBUTE, runtime)

    def on_request(message: PackedScoreReq) -> None:
        runtime.submit(message.rid, message.rows(), message)

    def on_status(message: PackedStatusReq) -> PackedStatusResult:
        payload = json.dumps(_status(scheduler, runtime)).encode()
        return PackedStatusResult(rid=message.rid, payload=payload)

    scheduler._request_dispatcher._mapping[PackedScoreReq] = on_request
    scheduler._request_dispatcher._mapping[PackedStatusReq] = on_status


def step_then_next_batch(
    original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any
) -> Any:
    """AROUND `Scheduler.get_next_batch_to_run`: at most one packed forward an iteration.

    Alternating with stock batches is what keeps either side from starving the other.
    """
    runtime: PackedRuntime | None = getattr(scheduler, _ATTRIBUTE, None)
    if runtime is not None and runtime.busy and runtime.step():
        scheduler.forward_ct += 1  # the watchdog's sign of life
        scheduler.maybe_send_health_check_signal()
    return original(scheduler, *args, **kwargs)


def is_fully_idle(
    original: Callable[..., bool],
    scheduler: Any,
    for_health_check: bool = False,
    ignore_waiting: bool = False,
) -> bool:
    """AROUND `Scheduler.is_fully_idle`: flushes and weight updates wait for packed work.

    While the engine is paused SGLang asks to ignore what only waits; weights may change then,
    so requests that have begun start over.
    """
    runtime: PackedRuntime | None = getattr(scheduler, _ATTRIBUTE, None)
    if runtime is not None:
        if ignore_waiting:
            runtime.restart_waiting()
        if runtime.in_flight or (runtime.busy and not ignore_waiting):
            return False
    return original(scheduler, for_health_check, ignore_waiting)


def abort_packed(_result: None, scheduler: Any, recv_req: Any) -> None:
    """AFTER `Scheduler.abort_request`."""
    runtime: PackedRuntime | None = getattr(scheduler, _ATTRIBUTE, None)
    if runtime is not None:
        runtime.abort(recv_req.rid, everything=recv_req.abort_all)


def add_packed_load(load: Any, _inquirer: Any) -> Any:
    """AFTER `SchedulerLoadInquirer.get_loads`: packed work counts in load balancing."""
    if _process_runtime is not None and _process_runtime.busy:
        load.num_waiting_reqs += _process_runtime.waiting_jobs
        load.num_total_tokens += _process_runtime.waiting_tokens
    return load


def _build_runtime(scheduler: Any, config: PrefillOnlyConfig) -> PackedRuntime:
    sender = scheduler.ipc_channels.send_to_tokenizer

    def answer(job: Job, result: JobResult) -> None:
        sender.send_output(PackedScoreResult.of(result), job.reply_to)

    reason = declined_reason(scheduler)
    if reason:
        logger.warning("Prefill-only serving: this model takes the stock path (%s)", reason)
    return PackedRuntime(
        None if reason else _build_executor(scheduler, config),
        answer,
        policy_of(config),
        declined_reason=reason,
    )


def _build_executor(scheduler: Any, config: PrefillOnlyConfig) -> PackedExecutor:
    stream = scheduler.forward_stream_ctx if scheduler.enable_overlap else None
    model = SglangModel(scheduler.tp_worker.model_runner, stream)
    return PackedExecutor(model, readout_bytes=config.readout_chunk_mib << 20)


def _status(scheduler: Any, runtime: PackedRuntime) -> dict[str, Any]:
    return {
        "dp_rank": get_parallel().dp_rank or 0,
        "packed": not runtime.declined_reason,
        "declined_reason": runtime.declined_reason or None,
        "queue": {"requests": runtime.waiting_jobs, "tokens": runtime.waiting_tokens},
        "counters": runtime.stats.as_dict(),
        "memory": _memory(scheduler),
        "patches": [state.as_dict() for state in engine.states()],
    }


def _memory(scheduler: Any) -> dict[str, int]:
    """Slots of the stock pools; packed work must leave them as they were."""
    cache = scheduler.tree_cache
    return {
        "kv_slots_free": int(scheduler.token_to_kv_pool_allocator.available_size()),
        "kv_slots_evictable": int(cache.evictable_size()),
        "kv_slots_protected": int(cache.protected_size()),
        "request_rows_free": int(scheduler.req_to_token_pool.available_size()),
    }
