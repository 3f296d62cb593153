"""Check that engines and routers keep no memory and no work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.fleet.routers import RouterProcesses
from bench.status import pool_totals, status_page
from sglang_prefill_ext.errors import PrefillExtError

_SOON_S = 120.0
_POLL_S = 0.1


class FaultsError(PrefillExtError):
    """The fleet has not returned to its state before the faults."""


def memory_of(port: int) -> list[dict[str, int]]:
    """Free room in the pools of each of an engine's schedulers; waits until it has no requests."""
    status: dict[str, Any] = {}

    def idle() -> bool:
        status.update(status_page(port) or {})
        queued = [each["queue"]["requests"] for each in status["schedulers"]]
        return bool(queued) and not any(queued) and not status["frontend"]["in_flight"]

    require(idle, "an engine keeps requests")
    return pool_totals(status)


def has_memory(memory: list[dict[str, int]], port: int) -> bool:
    """Whether an engine has exactly this free room once it has no requests."""
    return memory_of(port) == memory


def work_at(routers: RouterProcesses) -> list[str]:
    """Describe the requests and parts that each router has under way; empty if there are none."""
    pages: dict[int, dict[str, Any]] = {}

    def all_asked() -> bool:
        page = status_page(routers.port) or {}
        pages[page["pid"]] = page
        return pages.keys() >= {*routers.pids}

    require(all_asked, "a router does not answer")
    return [
        f"{pid}: {page['in_flight']} requests, {each['parts']} parts, {each['whole']} whole"
        for pid, page in pages.items()
        for each in page["replicas"]
        if page["in_flight"] or each["parts"] or each["whole"]
    ]


def require(done: Callable[[], bool], otherwise: str) -> None:
    """Wait until `done` returns true.

    Raises:
        FaultsError: with the text `otherwise`, if it does not in time.
    """
    limit_s = time.monotonic() + _SOON_S
    while not done():
        if time.monotonic() > limit_s:
            raise FaultsError(f"{otherwise} after {_SOON_S:g} s.")
        time.sleep(_POLL_S)
