"""Read what the extension's server counts on its packed path."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from bench.http_client import LoadError
from sglang_prefill_ext.local_server.readiness import answer_of
from sglang_prefill_ext.process.ports import LOOPBACK


@dataclass(frozen=True, slots=True)
class PackedCounters:
    """Totals since the server's start, summed over its schedulers.

    Attributes:
        requests: requests answered on the packed path.
        forwards: launched packed forwards.
        busy_s: seconds for which packed forwards kept the device busy.
    """

    requests: int
    forwards: int
    busy_s: float

    @classmethod
    def from_status(cls, status: dict[str, Any]) -> PackedCounters:
        """Read the status page."""
        schedulers = status["schedulers"]
        return cls(
            status["frontend"]["counters"]["requests"].get("packed", 0),
            sum(each["counters"]["forwards"] for each in schedulers),
            sum(each["busy_s"] for each in schedulers),
        )

    def since(self, before: PackedCounters) -> PackedCounters:
        """What was counted since `before`."""
        return PackedCounters(
            self.requests - before.requests,
            self.forwards - before.forwards,
            self.busy_s - before.busy_s,
        )


def status_page(port: int) -> dict[str, Any] | None:
    """The status page of a server's packed path; None for stock, which has no such page."""
    code, content = answer_of(LOOPBACK, port, "/prefill_only/status")
    status: dict[str, Any] | None = json.loads(content) if code == HTTPStatus.OK else None
    return status


def extension_page(port: int) -> dict[str, Any]:
    """The status page of the extension's server.

    Raises:
        LoadError: the server has none.
    """
    status = status_page(port)
    if status is None:
        raise LoadError("the server has no status page")
    return status


def packed_counters(port: int) -> PackedCounters:
    """The counters of the extension's server; the errors are those of `extension_page`."""
    return PackedCounters.from_status(extension_page(port))


def requests_by_path(port: int) -> Counter[str]:
    """Requests that the front end has served so far, by path or outcome; empty for stock."""
    status = status_page(port)
    return Counter() if status is None else Counter(status["frontend"]["counters"]["requests"])


def packed_requests(port: int) -> int:
    """Requests that the server answered on the packed path so far; 0 for a stock server."""
    return requests_by_path(port)["packed"]


def scheduled_requests(port: int) -> int:
    """Packed requests that the schedulers have answered, from all front ends; 0 for stock.

    The schedulers' count is up to date. Front ends in other processes report their counts later.
    """
    status = status_page(port)
    schedulers = [] if status is None else status["schedulers"]
    return sum(each["counters"]["requests"].get("ok", 0) for each in schedulers)


def pool_totals(status: dict[str, Any]) -> list[dict[str, int]]:
    """Free room in SGLang's pools, for each scheduler.

    A slot of the prefix cache counts as free, because SGLang evicts it when it needs one.
    """
    return [
        {
            "kv_slots": memory["kv_slots_free"] + memory["kv_slots_evictable"],
            "request_rows": memory["request_rows_free"],
            "kv_slots_protected": memory["kv_slots_protected"],
        }
        for memory in (each["memory"] for each in status["schedulers"])
    ]
