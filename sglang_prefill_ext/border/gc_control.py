"""Control garbage collection in schedulers, detokenizers and other processes behind front ends.

A `GcReq` travels from a front end to the schedulers, and from there to the detokenizers and to all
front ends, which send it to the one that asked. Each process acts on it and adds its report.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from sglang.srt.runtime_context import get_observability, get_serving

from sglang_prefill_ext.border.messages import GcReq, PackedAbortReq
from sglang_prefill_ext.metrics.pauses import pause_histogram
from sglang_prefill_ext.process.collector import Collector
from sglang_prefill_ext.process.ports import LOOPBACK, await_listener

_LISTENS_WITHIN_S = 10.0


@cache
def collector_of(role: str) -> Collector:
    """Return the collector of this process, which has only this role in the server."""
    labels = {"model_name": get_serving().served_model_name, "role": role}
    shown = get_observability().enable_metrics
    return Collector(role, pause_histogram(labels) if shown else None)


def act(collector: Collector, message: GcReq, *, busy: bool = False) -> None:
    """Perform the action of a message in this process, and add the report to it."""
    report = collector.perform(
        message.action, message.rid, thresholds=message.gc_threshold, busy=busy
    )
    message.reports = [*message.reports, report]


def attach_detokenizer(_result: None, manager: Any) -> None:
    """AFTER `DetokenizerManager.init_request_dispatcher`: handle a `GcReq` and pass it on."""
    collector = collector_of("detokenizer")

    def pass_on(message: GcReq) -> GcReq:
        act(collector, message)
        return message

    manager._request_dispatcher._mapping[GcReq] = pass_on


def freeze_when_listening(original: Callable[[Any], None], server_args: Any) -> None:
    """AROUND `http_server._freeze_gc_after_server_warmup`, which asks the server itself.

    With ``--skip-server-warmup`` SGLang asks before the server listens.
    """
    address = urlsplit(server_args.url())
    await_listener(address.hostname or LOOPBACK, address.port or 0, _LISTENS_WITHIN_S)
    original(server_args)


async def spread_to_workers(
    original: Callable[..., Awaitable[None]], router: Any, recv_obj: Any
) -> None:
    """AROUND `MultiTokenizerRouter._distribute_result_to_workers`: send what is for all to all."""
    if isinstance(recv_obj, GcReq):
        act(collector_of("tokenizer_router"), recv_obj)
    elif not isinstance(recv_obj, PackedAbortReq):
        return await original(router, recv_obj)
    for worker in router.all_worker_ipcs:
        router.socket_mapping.send_output(worker, recv_obj, is_tokenizer=True)
    return None
