"""Hook in the data-parallel controller: one replica takes a packed request."""

from __future__ import annotations

from typing import Any

from sglang_prefill_ext.compat.activation import config_of
from sglang_prefill_ext.compat.gc_control import act, collector_of
from sglang_prefill_ext.compat.messages import GcReq, PackedRowsReq


def route_packed(_result: None, controller: Any) -> None:
    """AFTER `DataParallelController.init_dispatcher`.

    Messages of unknown type go to every replica, which is right for a status request and
    wrong for work; work follows the same balancing as stock requests.
    """
    if config_of(controller.server_args) is None:
        return

    def dispatch(message: PackedRowsReq) -> None:
        if controller.refresh_load_budget_on_dispatch:
            controller.refresh_load_budget()
        controller.dispatching(message)

    collector = collector_of("dp_controller")

    def pass_on(message: GcReq) -> None:
        act(collector, message)
        controller.send_control_message(message)

    handlers = controller._request_dispatcher._mapping
    handlers[PackedRowsReq] = dispatch
    handlers[GcReq] = pass_on
