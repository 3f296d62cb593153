"""Messages to a scheduler that are about its packed path as a whole, or wait for its forwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from sglang.srt.managers import io_struct
from sglang.srt.runtime_context import get_parallel, get_serving

from sglang_prefill_ext.border import patches
from sglang_prefill_ext.border.gc_control import act
from sglang_prefill_ext.border.messages import (
    GcReq,
    PackedExpireReq,
    PackedStatusReq,
    PackedStatusResult,
)
from sglang_prefill_ext.border.model.alignment import ALIGNMENTS
from sglang_prefill_ext.border.scheduler.packed_work import PackedWork
from sglang_prefill_ext.process.stages import STARTUP
from sglang_prefill_ext.scheduling.runtime import PackedRuntime
from sglang_prefill_ext.shared_device.placement import Placement
from sglang_prefill_ext.startup.answer_check import AnswerCheck

_AFTER_FORWARDS = (
    io_struct.PauseGenerationReqInput,
    io_struct.BeginWeightUpdateReqInput,
    io_struct.EndWeightUpdateReqInput,
    io_struct.UpdateWeightFromDiskReqInput,
    io_struct.UpdateWeightsFromDistributedReqInput,
    io_struct.UpdateWeightsFromIPCReqInput,
    io_struct.UpdateWeightsFromTensorReqInput,
    io_struct.ReleaseMemoryOccupationReqInput,
)
"""Messages before which packed forwards in flight are collected. In a pause, SGLang's loop would
not collect them. The other messages change weights or memory, and SGLang does not wait for forwards
of aborted requests before it handles them."""


def handle_control_messages(scheduler: Any, work: PackedWork) -> None:
    """Let a scheduler handle all messages of the packed path but its requests."""
    mapping = scheduler._request_dispatcher._mapping
    mapping[PackedExpireReq] = partial(_on_expire, work)
    mapping[PackedStatusReq] = partial(_on_status, scheduler, work)
    mapping[GcReq] = partial(_on_gc, scheduler, work)
    for kind in _AFTER_FORWARDS:
        mapping[kind] = _after_forwards(work, mapping[kind])


def _on_expire(work: PackedWork, message: PackedExpireReq) -> None:
    work.runtime.expire(message.now_ms, message.tokens_per_s)
    work.show_queue()


def _on_status(scheduler: Any, work: PackedWork, message: PackedStatusReq) -> PackedStatusResult:
    return PackedStatusResult(
        rid=message.rid, payload=json.dumps(_status(scheduler, work)).encode()
    )


def _on_gc(scheduler: Any, work: PackedWork, message: GcReq) -> None:
    act(work.collector, message, busy=not scheduler.is_fully_idle())
    _gather_reports(message, scheduler.tp_cpu_group)
    channels = scheduler.ipc_channels
    channels.send_to_tokenizer.send_output(message, message)
    if not get_serving().skip_tokenizer_init:  # else no detokenizer reads that socket
        channels.send_to_detokenizer.send_output(message, message)


def _after_forwards(work: PackedWork, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def handle(message: Any) -> Any:
        work.collect()
        answer = handler(message)
        work.setup.after_update()
        return answer

    return handle


def _gather_reports(message: GcReq, group: Any) -> None:
    """Replace the reports by those of all tensor-parallel ranks; only the first rank can send."""
    reports: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(reports, message.reports, group=group)
    message.reports = [report for of_rank in reports for report in of_rank]


def _status(scheduler: Any, work: PackedWork) -> dict[str, Any]:
    """One scheduler's part of the status page, ready for JSON."""
    runtime, setup = work.runtime, work.setup
    return {
        "dp_rank": get_parallel().dp_rank or 0,
        "packed": not runtime.declined_reason,
        "declined_reason": runtime.declined_reason,
        "known_answers": _known_answers(runtime, setup.check),
        "graphs": setup.graphs.as_dict(),
        "experts": {**setup.experts.as_dict(), "deep_gemm": ALIGNMENTS.as_dict()},
        "order": runtime.policy.order,
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
