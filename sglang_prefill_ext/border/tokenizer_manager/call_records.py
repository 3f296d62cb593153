"""Keeps one of SGLang's request records for each packed call, however many prompts it has.

SGLang keeps a record of every request that is under way. On SIGTERM it waits until there is none,
and in a crash it dumps them. When a request ends, SGLang counts, logs, exports or dumps it, as its
flags say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from sglang.srt.managers.tokenizer_manager import ReqState
from sglang.srt.observability.req_time_stats import APIServerReqTimeStats, RequestStage

from sglang_prefill_ext.border.tokenizer_manager.call_context import LEFT_TO_SGLANG, keep_running
from sglang_prefill_ext.border.tokenizer_manager.stock_counters import RequestCounters
from sglang_prefill_ext.errors import RequestAbortedError
from sglang_prefill_ext.frontend.answers import Served
from sglang_prefill_ext.frontend.exchange import CALL_NAME, StockPathTaken, unique_name
from sglang_prefill_ext.wire.stock_reason import StockReason

_TRACE_HEADERS = ("traceparent", "tracestate")  # of W3C Trace Context


@dataclass
class PackedCall:
    """A call in logs, exports and dumps; SGLang's log levels choose fields by these names.

    Attributes:
        rid: the first name that the client has given, if any, else one of ours.
        route: the path of its HTTP request; empty without one.
        text, input_ids: the contents of its prompts, if they are shown anywhere.
    """

    rid: str
    route: str
    num_prompts: int
    text: Any = None
    input_ids: Any = None


class CallRecord:
    """One call under way.

    Args:
        request: the HTTP request, if any; its headers name the trace that the call is a part of.
        priority: SGLang's field of this name; None if the call has none.
        traced: whether SGLang traces requests.

    Attributes:
        times: SGLang's time stamps of the call.
        served: counts and times of the answer; set by whoever has answered the call.
        error: how it ended badly, if that is not raised.
    """

    def __init__(
        self, call: PackedCall, request: Any, priority: int | None, *, traced: bool
    ) -> None:
        self.call, self.request, self.priority = call, request, priority
        self.times = APIServerReqTimeStats()
        self.times.set_created_time()
        self._traced = traced
        self.state = ReqState(
            out_list=[], finished=False, event=asyncio.Event(), obj=call, time_stats=self.times
        )
        self.served: Served | None = None
        self.error: Exception | None = None

    async def is_disconnected(self) -> bool:
        """Whether the client has left, or SGLang was asked to abort the call by its name."""
        left = getattr(self.request, "is_disconnected", None)
        return bool(self.state.abort_sent) or (left is not None and await left())

    def end(self) -> None:
        """Record that the call is answered, be it with an error."""
        self.state.finished = True
        end = time.perf_counter()
        if self._traced:
            self._trace(end)
        self.times.set_first_token_time(end)
        self.times.set_finished_time(end)

    def _trace(self, end: float) -> None:
        """Trace the call, which began earlier: SGLang traces those that it serves itself."""
        headers, times = getattr(self.request, "headers", {}), self.times
        trace = {name: headers[name] for name in _TRACE_HEADERS if name in headers}
        times.init_trace_ctx(self.call.rid, None, trace)
        times.set_created_time(times.created_time)
        if self.served is None:
            return
        # The scheduler's times come with its answer, and are traced as spans of this process.
        begun = end - self.served.compute_s
        queued = begun - self.served.queue_s
        times.set_tokenize_finish_time(queued)
        times.trace_slice(RequestStage.PREFILL_WAITING, queued, begun)
        times.trace_slice(RequestStage.PREFILL_FORWARD, begun, end)

    def outcome(self, error: Exception | None) -> dict[str, Any]:
        """The answer of an ended request in SGLang's form, with sums over all prompts."""
        served = self.served
        tokens: dict[str, int] = {}
        reason: dict[str, Any] = {"type": "abort", "message": str(error)}
        if served is not None:
            reason = {"type": "length", "length": served.new_tokens}
            tokens = {
                "prompt_tokens": served.num_tokens,
                "cached_tokens": int(served.cached_tokens.sum()),
                "completion_tokens": served.num_prompts * served.new_tokens,
            }
        meta = {"id": self.call.rid, "finish_reason": reason, **tokens}
        return {"meta_info": meta | {"e2e_latency": self.times.get_e2e_latency()}}


class CallRecords:
    """Keeps packed calls among the requests of one front-end process's manager."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._counters_of = lru_cache(maxsize=64)(self._new_counters)

    def _new_counters(self, priority: int | None) -> RequestCounters | None:
        """What counts the calls of a priority, or those without one; None without metrics."""
        manager = self._manager
        if not manager.enable_metrics:
            return None
        if not manager.enable_priority_scheduling:
            priority = None
        elif priority is None:
            priority = manager.default_priority_value
        first_tokens = manager.server_args.disaggregation_mode != "prefill"
        collector = manager.metrics_collector
        return RequestCounters(collector, first_tokens=first_tokens, priority=priority)

    @cached_property
    def _exports(self) -> bool:
        """Whether requests are exported; fixed when the server starts."""
        return bool(self._manager.request_metrics_exporter_manager.exporter_enabled())

    @property
    def shows_requests(self) -> bool:
        """Whether single requests are logged, exported or dumped."""
        manager = self._manager
        return bool(
            manager.request_logger.log_requests
            or self._exports
            or manager.dump_requests_folder
            or manager.crash_dump_folder
        )

    @contextmanager
    def keeping(
        self,
        request: Any,
        num_prompts: int,
        contents: Callable[[], dict[str, Any]],
        names: Sequence[str] = (),
        priority: int | None = None,
    ) -> Iterator[CallRecord]:
        """Keep a record of the call inside, and report how it ends, unless SGLang is to serve it.

        Args:
            request: the HTTP request, if any.
            contents: returns `PackedCall.text` or `input_ids`; called only if requests are shown.
            names: of the record, if the client has named its prompts.
            priority: see `CallRecord`.

        Raises:
            StockPathTaken: another request under way has one of the names, which SGLang refuses.
        """
        records = self._manager.rid_to_state
        if not records.keys().isdisjoint(names):
            raise StockPathTaken(StockReason.UNUSUAL_INPUT)
        shown = contents() if self.shows_requests else {}
        route = getattr(request, "scope", {}).get("path", "")
        own = names or [unique_name(CALL_NAME)]  # spans have the name that is behind the line
        call = PackedCall(own[0], route, num_prompts, **shown)
        record = CallRecord(call, request, priority, traced=self._manager.enable_trace)
        records.update(dict.fromkeys(own, record.state))
        try:
            yield record
            if record.served is not None or record.error is not None:
                self._end(record, record.error)
        except LEFT_TO_SGLANG:
            raise
        except asyncio.CancelledError:  # by who asked in the client's place
            self._end(record, RequestAbortedError("The call was cancelled."))
            raise
        except Exception as error:
            self._end(record, error)
            raise
        finally:
            for name in own:
                records.pop(name, None)

    def _end(self, record: CallRecord, error: Exception | None) -> None:
        record.end()
        counters = self._counters_of(record.priority)
        if counters is not None:
            if record.served is not None:
                counters.record(record.served, record.times.get_e2e_latency())
            elif isinstance(error, RequestAbortedError) and not record.state.abort_sent:
                counters.record_aborted(record.call.num_prompts)
        if self.shows_requests:
            self._show(record, record.outcome(error))

    def _show(self, record: CallRecord, outcome: dict[str, Any]) -> None:
        manager, call = self._manager, record.call
        manager.request_logger.log_finished_request(call, outcome, request=record.request)
        if self._exports:
            keep_running(manager.request_metrics_exporter_manager.write_record(call, outcome))
        if manager.dump_requests_folder:
            manager.dump_requests(record.state, outcome)
        if manager.crash_dump_folder:
            manager.record_request_for_crash_dump(record.state, outcome)
