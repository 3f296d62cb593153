from __future__ import annotations

import time
from collections import Counter, deque
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import REGISTRY

from sglang_prefill_ext.fleet.fleet import Fleet
from sglang_prefill_ext.fleet.loads import Loads
from sglang_prefill_ext.fleet.planning.cost import Speed
from sglang_prefill_ext.fleet.replica_load import ReplicaLoad
from sglang_prefill_ext.fleet.status import FleetExport


def shown(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"sglang:prefill_only_fleet_{name}", labels)


def test_an_engine_that_is_not_used_any_more_has_neither_work_nor_speed() -> None:
    now_s, loads, counts = time.monotonic(), Loads(), Counter[str]()
    replicas: dict[str, Any] = {"a": SimpleNamespace(url="a", offer=object())}
    took_s = deque([0.015, 3.0])
    dispatcher = SimpleNamespace(attempts=SimpleNamespace(counts=counts), took_s=took_s)
    parts = {"loads": loads, "replicas": replicas, "deployment": {}, "dispatcher": dispatcher}
    fleet, export = cast(Fleet, SimpleNamespace(**parts)), FleetExport()

    def gauges() -> tuple[float | None, ...]:
        export.update(fleet)
        kinds = "replica_up", "replica_outstanding_seconds", "replica_tokens_per_second"
        return tuple(shown(kind, replica="a") for kind in kinds)

    loads["a"] = ReplicaLoad(Speed(0.0, 0.5), now_s)
    loads["a"].reported(1000.0, now_s)
    counts["parts"] += 2
    up, waits_s, speed = gauges()
    assert (up, speed, shown("events_total", kind="parts")) == (1, 2, 2)
    assert [shown("request_seconds_bucket", le=le) for le in ("0.01", "0.02", "+Inf")] == [0, 1, 2]
    assert waits_s is not None
    assert waits_s > 900
    del loads["a"]
    assert gauges() == (0, 0, 0)
    replicas.clear()
    assert gauges() == (0, 0, 0)
    assert shown("events_total", kind="parts") == 2
    assert shown("request_seconds_count") == 2
