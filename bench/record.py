"""The record: one JSON line per measurement, with command, commit, machine and versions."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

COMMIT_ENV = "BENCH_COMMIT"

_PACKAGES = ("torch", "sglang", "sglang-prefill-ext", "transformers", "triton", "numpy")


@dataclass(frozen=True, slots=True)
class Result:
    """One load on one server.

    Attributes:
        preset: model.
        shape: of the requests, such as ``60+2x50``.
        load: readable text, such as ``8 clients``.
        closed: true for a closed loop, false for an open one.
        path: ``stock`` or ``extension``.
        repeat: which start of this server, from 0.
        rate_per_s: requests per second that were offered; None in a closed loop.
        requests: counted answers.
        packed_share: share of all sent requests that were answered on the packed path.
        seconds: time in which the counted answers came.
        requests_per_s, items_per_s: rates of the counted answers.
        p50_ms, p90_ms, p99_ms: latency; in an open loop from the scheduled arrival.
        generator_cpu_share: of one core, used by the load generator.
        operation_ratio: stock's arithmetic per operation of the packed forward.
    """

    preset: str
    shape: str
    load: str
    closed: bool
    path: str
    repeat: int
    rate_per_s: float | None
    requests: int
    packed_share: float
    seconds: float
    requests_per_s: float
    items_per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    generator_cpu_share: float
    operation_ratio: float


def append(path: Path, results: Iterable[DataclassInstance], context: dict[str, Any]) -> None:
    """Append one line per result, each with the whole `context`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for result in results:
            file.write(json.dumps({**asdict(result), **context}) + "\n")


def run_context(module: str = "bench") -> dict[str, Any]:
    """Return date, command, commit and machine of a run; call it when the run starts.

    Args:
        module: the module that was run, as in ``python -m bench``.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": ["python", "-m", module, *sys.argv[1:]],
        **commit(Path(__file__).parent),
        "machine": machine(),
    }


def commit(directory: Path) -> dict[str, Any]:
    """The git commit, and whether files differ from it.

    Outside of a repository, for example in a copy of the files, the commit is the value of the
    environment variable `COMMIT_ENV`, or None.
    """
    found = _output("git", "-C", str(directory), "rev-parse", "HEAD")
    return {
        "commit": found or os.environ.get(COMMIT_ENV),
        "dirty": bool(_output("git", "-C", str(directory), "status", "--porcelain")),
    }


def machine() -> dict[str, Any]:
    """Processor, memory, accelerator, and versions of the software that computes."""
    return {
        "cpu": _proc_field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _proc_field("/proc/meminfo", "MemTotal"),
        "gpu": _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],  # over one minute
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def _proc_field(path: str, name: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _output(*command: str) -> str | None:
    """Standard output of a command; None if the program is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
