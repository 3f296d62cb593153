"""Measure a request on a running server: latency, and CPU time of each process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.cores import SINGLE_THREADED, cpu_seconds
from bench.http_client import post_bytes
from bench.load import Window, closed_loop, run_loop
from bench.score.plan import EXTENSION, QUIET_ARGS, server_flags
from bench.server import MeasuredServer
from bench.status import packed_counters

_WARM_UP = Window(seconds=0.5, min_requests=20)
_ROLES = ("scheduler", "detokenizer")


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one request from a single client, in µs.

    Attributes:
        latency_us: P50 latency.
        cpu_us: role of a process -> its CPU time.
        forward_us: time for which packed forwards kept the device busy; None for stock.
    """

    latency_us: float
    cpu_us: dict[str, float]
    forward_us: float | None


def measure(model: Path, path: str, pools: list[list[bytes]], seconds: float) -> list[Cost]:
    """Start a server and send it the bodies of each pool, one request at a time."""
    flags = [*QUIET_ARGS, *server_flags(path)]
    log = model.parent / f"{path}.log"
    with MeasuredServer(model, flags, env=SINGLE_THREADED, log_path=log) as server:
        return [_cost(server, path, pool, seconds) for pool in pools]


def _cost(server: MeasuredServer, path: str, bodies: list[bytes], seconds: float) -> Cost:
    pool = [post_bytes("/v1/score", body) for body in bodies]
    run_loop(closed_loop(server.port, pool, 1, _WARM_UP))
    counts = path == EXTENSION
    busy = packed_counters(server.port).busy_s if counts else 0.0
    before = _cpu_s(server)
    seen = run_loop(closed_loop(server.port, pool, 1, Window(seconds, min_requests=20)))
    used = {role: spent - before.get(role, 0.0) for role, spent in _cpu_s(server).items()}
    forward = None
    if counts:
        busy = packed_counters(server.port).busy_s - busy
        forward = busy / seen.sent * 1e6
    cpu = {role: spent / seen.sent * 1e6 for role, spent in used.items()}
    return Cost(seen.percentile_ms(50) * 1e3, cpu, forward)


def _cpu_s(server: MeasuredServer) -> dict[str, float]:
    """CPU seconds of the server's processes so far, by role."""
    spent: dict[str, float] = {}
    for pid, seconds in cpu_seconds(server.pids).items():
        title = " ".join(psutil.Process(pid).cmdline()[:1])
        role = next((role for role in _ROLES if role in title), "front end")
        spent[role] = spent.get(role, 0.0) + seconds
    return spent
