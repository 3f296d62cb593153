"""The status page of a router, and its metrics for Prometheus."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from typing import Any

from starlette.responses import Response

from sglang_prefill_ext import __version__
from sglang_prefill_ext.fleet.fleet import Fleet
from sglang_prefill_ext.fleet.health import UNKNOWN, Health
from sglang_prefill_ext.fleet.planning.cost import Speed
from sglang_prefill_ext.fleet.planning.planner import ReplicaState
from sglang_prefill_ext.fleet.replica import Replica
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.process.collector import Collector

_REFUSED = "refused"
"""Shown in place of a `Health` for an engine that differs from the others."""

_LATE = "It is late with parts of requests, or has failed at some."

_BUCKETS_S = (
    *(1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.7, 1, 2, 5, 10, 30, math.inf),
)
"""Of latencies: fine where the limits of rankers lie."""

_UNUSED = ReplicaState(0.0, Speed(0.0, math.inf))


def status_of(fleet: Fleet, metrics: FrontendMetrics, collector: Collector) -> dict[str, Any]:
    """Return the status of this router process, ready for JSON."""
    now_s = time.monotonic()
    states = fleet.loads.snapshot(now_s).states

    def page_of(replica: Replica) -> dict[str, Any]:
        load, state = fleet.loads.get(replica.url), states.get(replica.url, _UNUSED)
        unused = _REFUSED if replica.differs else UNKNOWN
        health = unused if load is None else load.health(now_s)
        return {
            "url": replica.url,
            "health": health,
            "why": replica.why or (_LATE if health in (Health.SUSPECT, Health.DOWN) else ""),
            "parts": 0 if load is None else load.parts,
            "whole": replica.whole,
            "outstanding_s": state.outstanding_s,
            "tokens_per_s": 1 / state.speed.token_s,
            "launch_s": state.speed.launch_s,
        }

    return {
        "version": __version__,
        "pid": os.getpid(),
        "model": None if fleet.offer is None else fleet.offer.served_name,
        "in_flight": fleet.in_flight,
        "tokenizer": fleet.tokenizer_status(),
        "counters": {"fleet": dict(fleet.dispatcher.attempts.counts), **metrics.as_dict()},
        "garbage_collection": collector.report(),
        "deployment": fleet.deployment,
        "replicas": [page_of(replica) for replica in fleet.replicas.values()],
    }


class FleetExport:
    """Exports the fleet of this process to Prometheus; `update` has to be called regularly.

    A gauge shows the value of the process that set it last, as all see the same replicas.
    """

    def __init__(self) -> None:
        # Imported late: at import it reads the variable with the directory that processes share.
        from prometheus_client import Counter as PrometheusCounter
        from prometheus_client import Gauge, Histogram

        def gauge(name: str, text: str, label: str = "replica") -> Any:
            full = f"sglang:prefill_only_fleet_{name}"
            return Gauge(full, text, [label], multiprocess_mode="mostrecent")

        self._up = gauge("replica_up", "1 for a replica that gets work, else 0.")
        self._waits = gauge("replica_outstanding_seconds", "Work that waits at a replica.")
        self._speed = gauge("replica_tokens_per_second", "How fast a replica is.")
        self._engines = gauge("engines", "Engines in each state, where Ray starts them.", "state")
        self._counts = PrometheusCounter(
            "sglang:prefill_only_fleet_events",
            "Packed requests, their parts, and requests handed on whole.",
            ["kind"],
        )
        self._took_s = Histogram(
            "sglang:prefill_only_fleet_request_seconds",
            "From a packed request to its joined answer.",
            buckets=_BUCKETS_S,
        )
        self._exported: Counter[str] = Counter()
        self._shown: set[str] = set()
        self._states: set[str] = set()

    def update(self, fleet: Fleet) -> None:
        now_s = time.monotonic()
        states = fleet.loads.snapshot(now_s).states
        for url in self._shown | fleet.replicas.keys():
            load, state = fleet.loads.get(url), states.get(url, _UNUSED)
            self._up.labels(url).set(load is not None and load.health(now_s) is Health.UP)
            self._waits.labels(url).set(state.outstanding_s)
            self._speed.labels(url).set(1 / state.speed.token_s)
        self._shown = set(fleet.replicas)
        self._states |= fleet.deployment.keys()
        for name in self._states:
            self._engines.labels(name).set(fleet.deployment.get(name, 0))
        for kind, count in fleet.dispatcher.attempts.counts.items():
            self._counts.labels(kind).inc(count - self._exported[kind])
        while fleet.dispatcher.took_s:
            self._took_s.observe(fleet.dispatcher.took_s.popleft())
        self._exported = fleet.dispatcher.attempts.counts.copy()


def metrics_page() -> Response:
    """The metrics of all router processes that share a port."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
