"""Where the time of a GPU goes while a server answers: by SGLang's own profiler."""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.drawing import new_table
from bench.http_client import Connection, connect, post_bytes
from bench.load import Measurement, Window, closed_loop, run_loop
from bench.score.plan import Case

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
"""Categories of what runs on the device, in a trace of torch's profiler."""
WITHOUT = dict.fromkeys(("with_stack", "record_shapes"), False)
"""What SGLang records else: with Python's stacks stock was half as fast, and its trace, five times
as large, took it a minute to write."""
REQUESTS = 12
KERNELS = 20
TRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class Profile:
    """What ran on the device under a closed loop.

    Attributes:
        path: which server, see `bench.score.plan`.
        clients, shape: the load.
        requests: answered while the profiler ran.
        span_ms: from the first kernel's start to the last one's end.
        busy_share: share of the span in which anything ran.
        kernels: the kernels that took longest: name, launches, and milliseconds in all.
        calls: the same of calls to CUDA, by the host.
    """

    path: str
    clients: int
    shape: str
    requests: int
    span_ms: float
    busy_share: float
    kernels: list[tuple[str, int, float]]
    calls: list[tuple[str, int, float]]


def profiled(path: str, port: int, clients: int, case: Case) -> Profile:
    """Load a server while its profiler runs.

    Raises:
        LoadError: an answer was not 200.
        OSError: the server wrote no trace in time.
    """
    with tempfile.TemporaryDirectory(prefix="profile-") as directory:
        run_loop(closed_loop(port, case.pool, clients, Window(0.3, REQUESTS)))
        seen = run_loop(_while_profiling(port, clients, case, directory))
        events = _read_trace(Path(directory))
    on_device = [each for each in events if each.get("cat") in DEVICE]
    span_us, busy_us = busy([(each["ts"], each["ts"] + each["dur"]) for each in on_device])
    calls = [each for each in events if each.get("cat") in ("cuda_runtime", "cuda_driver")]
    return Profile(
        *(path, clients, str(case.shape), seen.sent),
        *(span_us / 1e3, busy_us / max(span_us, 1e-9)),
        kernels=_largest(on_device),
        calls=_largest(calls),
    )


def busy(intervals: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the length from the first start to the last end, and how much of it is covered."""
    covered, end, first = 0.0, float("-inf"), min((each[0] for each in intervals), default=0.0)
    for start, stop in sorted(intervals):
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return (end - first, covered) if intervals else (0.0, 0.0)


def show(profiles: Iterable[Profile], console: Console) -> None:
    """Print a line for each profile, with its longest kernels."""
    columns = ("shape", "server", "clients", "requests", "span ms", "busy", "kernels: ms, launches")
    table = new_table("The device under load", *columns)
    for each in profiles:
        longest = "\n".join(
            f"{ms:.2f}, {count}: {name[:60]}" for name, count, ms in each.kernels[:6]
        )
        figures = (str(each.requests), f"{each.span_ms:.1f}", f"{each.busy_share:.0%}")
        table.add_row(each.shape, each.path, str(each.clients), *figures, longest)
    console.print(table)


def _largest(events: list[dict[str, Any]]) -> list[tuple[str, int, float]]:
    spent: Counter[str] = Counter()
    for each in events:
        spent[each["name"]] += each["dur"]
    counts = Counter(each["name"] for each in events)
    return [(name[:120], counts[name], us / 1e3) for name, us in spent.most_common(KERNELS)]


async def _while_profiling(port: int, clients: int, case: Case, directory: str) -> Measurement:
    def request(path: str, **body: Any) -> bytes:
        return post_bytes(path, json.dumps(body).encode())

    connection = await connect(port, Connection)
    try:
        started = {"output_dir": directory, "activities": ["CPU", "GPU"]}
        await connection.send(request("/start_profile", **started, **WITHOUT))
        seen = await closed_loop(port, case.pool, clients, Window(0.1, REQUESTS))
        await connection.send(request("/stop_profile"))
    finally:
        connection.close()
    return seen


def _read_trace(directory: Path) -> list[dict[str, Any]]:
    deadline = time.monotonic() + TRACE_S
    while time.monotonic() < deadline:
        for trace in directory.glob("*.gz"):
            try:
                with gzip.open(trace) as file:
                    events: list[dict[str, Any]] = json.load(file)["traceEvents"]
            except (EOFError, ValueError):  # it is still being written
                continue
            return events
        time.sleep(0.2)
    raise OSError(f"the server wrote no trace to {directory} within {TRACE_S:g} s")
