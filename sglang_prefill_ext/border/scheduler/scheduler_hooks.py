"""Hooks in SGLang's `Scheduler`: start the packed path, take its requests, step it, abort it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_serving

from sglang_prefill_ext.border.activation import config_of
from sglang_prefill_ext.border.gc_control import collector_of
from sglang_prefill_ext.border.messages import PackedAbortReq, PackedExpireReq, PackedRowsReq
from sglang_prefill_ext.border.scheduler.control_messages import handle_control_messages
from sglang_prefill_ext.border.scheduler.packed_work import PackedWork
from sglang_prefill_ext.border.scheduler.runtime_setup import set_up_runtime
from sglang_prefill_ext.border.scheduler.stock_requests import refuse_embeddings
from sglang_prefill_ext.frontend.exchange import ROWS_NAME
from sglang_prefill_ext.process.stages import STARTUP
from sglang_prefill_ext.wire.packed import rows_from_bytes

logger = logging.getLogger(__name__)

_LIKE_A_PREFILL = SimpleNamespace(forward_mode=ForwardMode.EXTEND)
"""The batch that SGLang's profiler sees for a packed forward."""

# A process runs one scheduler.
_process_work: PackedWork | None = None


def attach_runtime(_result: None, scheduler: Any) -> None:
    """AFTER `Scheduler.init_request_dispatcher`: set up the packed path and its messages.

    The model and the streams exist by then.
    """
    global _process_work
    config = config_of(scheduler.server_args)
    if config is None:
        return
    STARTUP.mark("model")
    collector = collector_of("scheduler")
    setup = set_up_runtime(scheduler, config)
    setup.experts.learn()
    work = _process_work = PackedWork(scheduler, setup, config, collector)
    STARTUP.log("scheduler")
    scheduler._request_dispatcher._mapping[PackedRowsReq] = partial(_on_request, work)
    handle_control_messages(scheduler, work)
    refuse_embeddings(scheduler)


def _on_request(work: PackedWork, message: PackedRowsReq) -> None:
    try:
        rows = rows_from_bytes(message.row_bytes, work.setup.widths)
    except Exception as error:  # an error in the dispatcher would end the scheduler
        logger.error("Packed request %s cannot be read: %s", message.rid, error)
        work.runtime.refuse(message.rid, message, f"{type(error).__name__}: {error}")
        return
    work.runtime.submit(
        message.rid,
        rows,
        message,
        priority=message.priority,
        deadline_ms=message.deadline_ms,
        keep_prefix=message.keep_prefix,
    )


def step_then_next_batch(
    original: Callable[..., Any], scheduler: Any, running_batch: Any, last_batch: Any
) -> Any:
    """AROUND `Scheduler.get_next_batch_to_run`: launch at most one packed forward per iteration.

    Packed forwards and stock batches alternate, so that neither starves. While generations run,
    `IterationPolicy` decides which iterations have a packed forward.
    """
    work = _process_work
    if work is None:
        return original(scheduler, running_batch, last_batch)
    computed_before = work.runtime.stats.tokens_computed
    decoding = bool(running_batch.reqs)
    beside_stock = bool(decoding or last_batch or scheduler.waiting_queue)
    if work.runtime.busy and work.step(decoding=decoding, beside_stock=beside_stock):
        scheduler.forward_ct += 1  # tells SGLang's watchdog that the scheduler is alive
        # It looks at every count: profiles start at one of them, and end at another.
        scheduler.profiler_manager._profile_batch_predicate(_LIKE_A_PREFILL)
        # SGLang itself does it for its own batches, and once nothing is left to do.
        if scheduler.kv_events_publisher.enable_kv_cache_events:
            scheduler.kv_events_publisher.publish_kv_events()
    if beside_stock:
        work.make_room()
    if work.has_given_room():
        # Set where a prompt found no slots, and else kept until one of these requests leaves.
        running_batch.batch_is_full = False
    plan = original(scheduler, running_batch, last_batch)
    work.record_iteration(computed_before, plan.batch_to_run)
    return plan


def step_then_next_prefill(
    original: Callable[..., Any],
    scheduler: Any,
    running_batch: Any,
    last_batch: Any,
    should_retry_storage_prefetch: bool = True,
) -> Any:
    """AROUND `Scheduler.get_next_disagg_prefill_batch_to_run`: the same on a prefill server."""
    choose = partial(original, should_retry_storage_prefetch=should_retry_storage_prefetch)
    return step_then_next_batch(choose, scheduler, running_batch, last_batch)


def add_deadline_check(requests: list[Any] | None, _receiver: Any) -> list[Any] | None:
    """AFTER `SchedulerRequestReceiver._pull_raw_reqs`: tell all ranks to end late requests.

    Only the first rank pulls messages; SGLang sends what it returns to every rank. So all ranks end
    the same requests before the same iteration, including those that were just pulled.
    """
    work = _process_work
    if work is None or requests is None:
        return None
    now_ms = time.time() * 1e3
    scoring = (message for message in requests if isinstance(message, PackedRowsReq))
    arriving = (each.deadline_ms for each in scoring if each.deadline_ms is not None)
    if not work.is_late(now_ms, arriving):
        return None
    return [*requests, PackedExpireReq(now_ms=now_ms, tokens_per_s=work.runtime.deadline_pace)]


def is_fully_idle(
    original: Callable[..., bool],
    scheduler: Any,
    for_health_check: bool = False,
    ignore_waiting: bool = False,
) -> bool:
    """AROUND `Scheduler.is_fully_idle`: flushes and weight updates wait for packed work.

    While the engine is paused, SGLang asks with `ignore_waiting`. Weights may then change, so a
    queued request that has begun starts over.
    """
    work = _process_work
    if work is not None:
        if ignore_waiting:
            work.runtime.restart_waiting()
        if work.runtime.in_flight or (work.runtime.busy and not ignore_waiting):
            return False
    return original(scheduler, for_health_check, ignore_waiting)


def abort_packed(_result: None, scheduler: Any, recv_req: Any) -> None:
    """AFTER `Scheduler.abort_request`: abort packed requests, too.

    What a client has named is a call of its tokenizer worker. Another one may have been asked. No
    client names packed requests.
    """
    work = _process_work
    if work is None:
        return
    work.runtime.abort(recv_req.rid, everything=recv_req.abort_all)
    work.show_queue()
    is_call = not (recv_req.abort_all or recv_req.rid.startswith(ROWS_NAME))
    if is_call and get_serving().tokenizer_worker_num > 1:
        message = PackedAbortReq(rid=recv_req.rid)
        scheduler.ipc_channels.send_to_tokenizer.send_output(message, recv_req)


def add_packed_load(load: Any, _inquirer: Any) -> Any:
    """AFTER `SchedulerLoadInquirer.get_loads`: add queued packed work to the published load."""
    work = _process_work
    if work is not None and work.runtime.busy:
        load.num_waiting_reqs += len(work.runtime.queue)
        load.num_total_tokens += work.runtime.queue.load.tokens
    return load
