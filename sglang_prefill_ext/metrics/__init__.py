"""Counts and gauges of one front-end process or scheduler, for status page and Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sglang_prefill_ext.moe.routing import LayerBalance
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.status import BAD_ENDS
from sglang_prefill_ext.wire.stock_reason import StockReason

_TOTALS = {
    "items": "Items scored on the packed path.",
    "forwards": "Packed forwards that answered requests.",
    "tokens_computed": "Tokens that went through the model on the packed path.",
    "tokens_saved": "Further tokens that separate prompts would have computed.",
    "text_batches": "Batches in which texts of concurrent requests were encoded.",
    "chats": "Chats encoded by a library faster than Hugging Face's.",
    "spliced": "Requests whose shared text was encoded once.",
    "encoding_mismatches": "Ways of encoding turned off because their ids differed from SGLang's.",
    "encoding_failures": "Calls of a fast encoder that failed and were encoded as SGLang does.",
}
_COUNTERS = {
    **{name: (text,) for name, text in _TOTALS.items()},
    "requests": ("Prefill-only requests by path or outcome.", "path"),
    "fallbacks": ("Prefill-only requests that took the stock path, by reason.", "reason"),
}
"""The text and the further labels of each Prometheus counter."""

_PATHS = frozenset(("packed", "stock", *(end.counted for end in BAD_ENDS)))
"""Names that requests are counted under; others that another process reports are ignored."""


def new_metric(kind: str, name: str, text: str, labels: Iterable[str], **settings: Any) -> Any:
    """Make a metric of the class `kind` of prometheus_client.

    prometheus_client is imported late: with several front ends it must see the directory that
    SGLang sets up for sharing counters between processes.
    """
    import prometheus_client

    made = getattr(prometheus_client, kind)
    return made(f"sglang:prefill_only_{name}", text, tuple(labels), **settings)


class FrontendMetrics:
    """Requests by path, stock-path requests by reason, and totals of the packed path.

    Args:
        prometheus_labels: labels of SGLang's own metrics; None leaves Prometheus out.
    """

    def __init__(self, prometheus_labels: dict[str, str] | None = None) -> None:
        self.requests: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.totals: Counter[str] = Counter(dict.fromkeys(_TOTALS, 0))
        self._totals_lock = threading.Lock()  # texts are encoded, and counted, in threads
        self._exported: dict[str, Any] = {}
        self._labels = prometheus_labels or {}
        if prometheus_labels is not None:
            for name, (text, *more) in _COUNTERS.items():
                counter = new_metric("Counter", name, text, (*prometheus_labels, *more))
                # Totals exist from the start, so that alerts notice the first increment.
                self._exported[name] = counter if more else counter.labels(**prometheus_labels)
            for path in _PATHS:
                self._exported["requests"].labels(**prometheus_labels, path=path)

    def count_requests(self, path: str, requests: int = 1) -> None:
        """Count requests by their path, or by the outcome of those that ended in an error."""
        self.requests[path] += requests
        if self._exported:
            self._exported["requests"].labels(**self._labels, path=path).inc(requests)

    def record_work(self, rows: PackedRows, answer: PackedResult) -> None:
        """Count what answering one packed message took; it may hold the rows of many requests."""
        self._add_totals(
            {
                "items": rows.num_rows,
                "forwards": answer.forwards,
                "tokens_computed": answer.tokens_computed,
                "tokens_saved": rows.tokens_saved(answer.tokens_computed),
            }
        )

    def record_fallback(self, reason: StockReason) -> None:
        """Count one request that took the stock path."""
        self.count_requests("stock")
        self.fallbacks[str(reason)] += 1
        if self._exported:
            self._exported["fallbacks"].labels(**self._labels, reason=reason).inc()

    def count(self, total: str) -> None:
        """Add one to a total."""
        self._add_totals({total: 1})

    def take(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return requests by path and totals, and reset both; another process may `add` them."""
        requests, self.requests = self.requests, Counter()
        with self._totals_lock:
            totals, self.totals = self.totals, Counter(dict.fromkeys(_TOTALS, 0))
        return dict(requests), dict(totals)

    def add(self, requests: Mapping[str, int], totals: Mapping[str, int]) -> None:
        """Add what another process has counted; unknown names and negative numbers are ignored."""
        for path in _PATHS & requests.keys():
            self.count_requests(path, max(0, requests[path]))
        self._add_totals({name: max(0, totals[name]) for name in _TOTALS.keys() & totals.keys()})

    def as_dict(self) -> dict[str, Any]:
        return {"requests": dict(self.requests), "fallbacks": dict(self.fallbacks), **self.totals}

    def _add_totals(self, amounts: Mapping[str, int]) -> None:
        with self._totals_lock:
            for name, amount in amounts.items():
                self.totals[name] += amount
        if self._exported:
            for name, amount in amounts.items():
                self._exported[name].inc(amount)


_QUEUE = {
    "requests": "Packed requests that wait.",
    "tokens": "Tokens that wait to be computed.",
    "rows": "Rows of the packed requests that wait.",
    "bytes": "Memory of the packed requests that wait.",
    "oldest_wait_s": "Seconds for which the oldest waiting packed request has been here.",
}

_EXPERTS = {
    "padded": "Rows that the experts of a layer computed, over real rows, in a recent forward.",
    "stock_padded": "The same with the block of rows that SGLang's own choice would have had.",
    "busiest_share": "Share of a layer's rows that its busiest expert got, in a recent forward.",
}


class SchedulerMetrics:
    """The packed queue of one scheduler in Prometheus.

    Args:
        labels: those of SGLang's own metrics.
    """

    def __init__(self, labels: Mapping[str, Any]) -> None:
        self._gauges: dict[str, Any] = {}
        self._retried_forwards = 0
        self._by_graph: dict[str, int] = {}
        self._balance: Sequence[LayerBalance] = ()
        recent = {"multiprocess_mode": "mostrecent"}
        for name, text in _QUEUE.items():
            gauge = new_metric("Gauge", f"queue_{name}", text, labels, **recent)
            self._gauges[name] = gauge.labels(**labels)
        text = "Forwards that failed or gave NaN and ran again request by request."
        self._retried = new_metric("Counter", "retried_forwards", text, labels).labels(**labels)
        self._labels = labels
        text = "Packed forwards replayed as graphs (how=graph), and eager ones by reason."
        self._graph_forwards = new_metric("Counter", "graph_forwards", text, (*labels, "how"))
        self._experts = {
            name: new_metric("Gauge", f"expert_{name}", text, (*labels, "layer"), **recent)
            for name, text in _EXPERTS.items()
        }

    def update(
        self, queue: Mapping[str, float], retried_forwards: int, graph_forwards: Mapping[str, int]
    ) -> None:
        """Show the queue as it is now.

        Args:
            queue: a number for each name of `_QUEUE`.
            retried_forwards: total since the start.
            graph_forwards: totals since the start, see `GraphUse`.
        """
        for name, gauge in self._gauges.items():
            gauge.set(queue[name])
        self._retried.inc(retried_forwards - self._retried_forwards)
        self._retried_forwards = retried_forwards
        for how, count in graph_forwards.items():
            more = count - self._by_graph.get(how, 0)
            self._graph_forwards.labels(**self._labels, how=how).inc(more)
        self._by_graph = dict(graph_forwards)

    def show_experts(self, balance: Sequence[LayerBalance]) -> None:
        """Show the figures of each layer of experts from the forward that was last looked at."""
        if balance == self._balance:
            return
        self._balance = balance
        for layer, numbers in enumerate(balance):
            for name, value in numbers._asdict().items():
                self._experts[name].labels(**self._labels, layer=layer).set(value)
