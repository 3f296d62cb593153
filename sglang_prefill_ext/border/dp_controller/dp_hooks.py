"""Hooks in the data-parallel controller: send each packed request to one replica, by load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.io_struct import sock_send
from sglang.srt.utils.watchdog import SubprocessWatchdog

from sglang_prefill_ext.border.activation import config_of
from sglang_prefill_ext.border.gc_control import act, collector_of
from sglang_prefill_ext.border.messages import GcReq, PackedRowsReq
from sglang_prefill_ext.shared_device.balance import SchedulerLoads
from sglang_prefill_ext.shared_device.board import Board
from sglang_prefill_ext.wire.packed import head_of


def route_packed(_result: None, controller: Any) -> None:
    """AFTER `DataParallelController.init_dispatcher`: handle our messages; schedulers run by then.

    SGLang sends messages of unknown type to every replica. That is right for a status request, but
    a packed request must go to one replica, chosen by the same load balancing as stock requests.
    """
    config = config_of(controller.server_args)
    if config is None:
        return
    _take_requests_without_room(controller)
    balanced = config.schedulers > 1 and controller.refresh_load_budget_on_dispatch
    choose = _least_loaded(controller, config.schedulers) if balanced else controller.dispatching

    def dispatch(message: PackedRowsReq) -> None:
        if controller.refresh_load_budget_on_dispatch:
            controller.refresh_load_budget()
        choose(message)

    collector = collector_of("dp_controller")

    def pass_on(message: GcReq) -> None:
        act(collector, message)
        controller.send_control_message(message)

    handlers = controller._request_dispatcher._mapping
    handlers[PackedRowsReq] = dispatch
    handlers[GcReq] = pass_on
    _end_with_any_replica(controller)


def _take_requests_without_room(controller: Any) -> None:
    """Where the room chooses the replica, send requests without one to the replicas in turn.

    Packed requests never have one. Of others, a prefill server's schedulers refuse each; but
    SGLang's choice of a replica by the room would end the controller, and so the server.
    """
    by_room = controller.follow_bootstrap_room_scheduler
    if controller.dispatching != by_room:
        return

    def dispatch(message: Any) -> None:
        has_room = getattr(message, "bootstrap_room", None) is not None
        (by_room if has_room else controller.round_robin_scheduler)(message)

    controller.dispatching = dispatch
    controller.follow_bootstrap_room_scheduler = dispatch  # of health checks, too


def _least_loaded(controller: Any, schedulers: int) -> Callable[[PackedRowsReq], None]:
    """Choose the scheduler of every request, of either path, by exact counts of outstanding tokens.

    Returns:
        A function that chooses the scheduler of a packed request, and sends it there.
    """
    loads = SchedulerLoads(Board.found(schedulers).done)
    controller.dp_budget = loads
    caches_prefixes = not controller.server_args.disable_radix_cache

    def send(message: PackedRowsReq) -> None:
        tokens, prefix_len, adapter = head_of(message.row_bytes)
        prefix = tokens[:prefix_len].tobytes() if caches_prefixes else b""
        rank = loads.place(len(tokens), prefix, prefix_len, adapter=adapter)
        sock_send(controller.workers[rank], message)

    return send


def _end_with_any_replica(controller: Any) -> None:
    """End the server when a replica dies, as SGLang does if there is only one.

    SGLang watches only this process. If a replica were killed, its requests, and its share of later
    ones, would never be answered.
    """
    processes = controller.scheduler_procs
    names = [f"scheduler of replica {rank}" for rank in range(len(processes))]
    SubprocessWatchdog(processes, names).start()
