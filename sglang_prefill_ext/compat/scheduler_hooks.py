"""Hooks in SGLang's scheduler process: packed work beside the stock batch flow."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ReduceOp

from sglang_prefill_ext.compat.activation import config_of
from sglang_prefill_ext.compat.capability import declined_reason
from sglang_prefill_ext.compat.messages import (
    PackedExpireReq,
    PackedRowsReq,
    PackedRowsResult,
    PackedStatusReq,
    PackedStatusResult,
)
from sglang_prefill_ext.compat.model import model_of
from sglang_prefill_ext.compat.packed_work import PackedWork, packed_work
from sglang_prefill_ext.compat.radix import prefix_cache_of
from sglang_prefill_ext.compat.scheduler_status import status_of
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.oneshot.budget import ForwardBudget
from sglang_prefill_ext.oneshot.calibration import Calibration, calibrate
from sglang_prefill_ext.oneshot.executor import PackedExecutor, resolve_attention
from sglang_prefill_ext.oneshot.job import Job, JobResult
from sglang_prefill_ext.oneshot.policy import policy_of
from sglang_prefill_ext.oneshot.runtime import PackedRuntime

logger = logging.getLogger(__name__)

_ATTRIBUTE = "_prefill_only"

# A process runs one scheduler; some of its parts have no other way to reach it.
_process_work: PackedWork | None = None


def attach_runtime(_result: None, scheduler: Any) -> None:
    """AFTER `Scheduler.init_request_dispatcher`: the model and the streams exist by then."""
    global _process_work
    config = config_of(scheduler.server_args)
    if config is None:
        return
    runtime, whole_width = _build_runtime(scheduler, config)
    work = _process_work = packed_work(scheduler, runtime, config)
    setattr(scheduler, _ATTRIBUTE, work)

    def on_request(message: PackedRowsReq) -> None:
        runtime.submit(
            message.rid,
            message.rows(whole_width),
            message,
            priority=message.priority,
            deadline_ms=message.deadline_ms,
            keep_prefix=message.keep_prefix,
        )

    def on_expire(message: PackedExpireReq) -> None:
        runtime.expire(message.now_ms, message.tokens_per_s)
        work.show_queue()

    def on_status(message: PackedStatusReq) -> PackedStatusResult:
        status = status_of(scheduler, work, config)
        return PackedStatusResult(rid=message.rid, payload=json.dumps(status).encode())

    handlers = {
        PackedRowsReq: on_request,
        PackedExpireReq: on_expire,
        PackedStatusReq: on_status,
    }
    scheduler._request_dispatcher._mapping.update(handlers)


def step_then_next_batch(
    original: Callable[..., Any], scheduler: Any, running_batch: Any, last_batch: Any
) -> Any:
    """AROUND `Scheduler.get_next_batch_to_run`: at most one packed forward an iteration.

    Alternating with stock batches is what keeps either side from starving the other; while
    generations run, `IterationPolicy` decides in which iterations.
    """
    work: PackedWork | None = getattr(scheduler, _ATTRIBUTE, None)
    if work is None:
        return original(scheduler, running_batch, last_batch)
    computed_before = work.runtime.stats.tokens_computed
    if work.runtime.busy and work.step(decoding=not running_batch.is_empty()):
        scheduler.forward_ct += 1  # the watchdog's sign of life
        scheduler.maybe_send_health_check_signal()
    plan = original(scheduler, running_batch, last_batch)
    work.record_iteration(computed_before, plan.batch_to_run)
    return plan


def add_deadline_check(requests: list[Any] | None, _receiver: Any) -> list[Any] | None:
    """AFTER `SchedulerRequestReceiver._pull_raw_reqs`: have all ranks end what is late.

    Only the first rank pulls anything. What it returns reaches every rank, itself included, so
    that all end the same requests before the same iteration, those just pulled among them.
    """
    if _process_work is None or requests is None:
        return None
    now_ms = time.time() * 1e3
    scoring = (message for message in requests if isinstance(message, PackedRowsReq))
    arriving = (each.deadline_ms for each in scoring if each.deadline_ms is not None)
    if not _process_work.is_late(now_ms, arriving):
        return None
    pace = _process_work.runtime.deadline_pace
    return [*requests, PackedExpireReq(now_ms=now_ms, tokens_per_s=pace)]


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
    work: PackedWork | None = getattr(scheduler, _ATTRIBUTE, None)
    if work is not None:
        if ignore_waiting:
            work.runtime.restart_waiting()
        if work.runtime.in_flight or (work.runtime.busy and not ignore_waiting):
            return False
    return original(scheduler, for_health_check, ignore_waiting)


def abort_packed(_result: None, scheduler: Any, recv_req: Any) -> None:
    """AFTER `Scheduler.abort_request`."""
    work: PackedWork | None = getattr(scheduler, _ATTRIBUTE, None)
    if work is not None:
        work.runtime.abort(recv_req.rid, everything=recv_req.abort_all)
        work.show_queue()


def add_packed_load(load: Any, _inquirer: Any) -> Any:
    """AFTER `SchedulerLoadInquirer.get_loads`: packed work counts in load balancing."""
    if _process_work is not None and _process_work.runtime.busy:
        load.num_waiting_reqs += _process_work.runtime.waiting_jobs
        load.num_total_tokens += _process_work.runtime.waiting_load.tokens
    return load


def _build_runtime(scheduler: Any, config: PrefillOnlyConfig) -> tuple[PackedRuntime, int]:
    """Return the runtime, and how wide the model's vectors are (see `Model`)."""
    sender = scheduler.ipc_channels.send_to_tokenizer

    def answer(job: Job, result: JobResult) -> None:
        sender.send_output(PackedRowsResult.of(result), job.reply_to)

    reason = declined_reason(scheduler)
    if reason:
        logger.warning("Prefill-only serving: this model takes the stock path (%s)", reason)
        nothing_runs = policy_of(config, ForwardBudget(config.max_forward_tokens), launch_tokens=1)
        return PackedRuntime(None, answer, nothing_runs, declined_reason=reason), 1
    executor, measured = _build_executor(scheduler, config)
    policy = policy_of(config, measured.budget, measured.launch_tokens)
    cache = prefix_cache_of(scheduler, config)
    return PackedRuntime(executor, answer, policy, cache=cache), executor.vector_width


def _build_executor(
    scheduler: Any, config: PrefillOnlyConfig
) -> tuple[PackedExecutor, Calibration]:
    stream = scheduler.forward_stream_ctx if scheduler.enable_overlap else None
    model = model_of(scheduler.tp_worker.model_runner, stream)
    executor = PackedExecutor(
        model,
        readout_bytes=config.readout_chunk_mib << 20,
        attention=resolve_attention(config.attention, model),
    )

    def largest_of_all_ranks(numbers: list[int]) -> list[int]:
        tensor = torch.tensor(numbers)
        torch.distributed.all_reduce(tensor, ReduceOp.MAX, group=scheduler.tp_cpu_group)
        return tensor.tolist()

    measured = calibrate(executor, model.device, config.max_forward_tokens, largest_of_all_ranks)
    logger.info("Prefill-only serving: measured %s", measured)
    return executor, measured
