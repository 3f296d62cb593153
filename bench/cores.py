"""Processor cores: keep them awake, give processes their own, read spent CPU time (Linux)."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import psutil
import typer

from sglang_prefill_ext.errors import ConfigError

SINGLE_THREADED = {"OMP_NUM_THREADS": "1"}
"""Environment of a server whose scheduler gets one core."""

_SCHEDULER = "sglang::scheduler"  # SGLang names its processes after their roles

_SLEEP_LIMIT = Path("/dev/cpu_dma_latency")
"""File of Linux PM QoS. What is written is the longest time in us that waking up a core may take;
it holds while the file is open."""


Awake: TypeAlias = Annotated[
    bool, typer.Option("--awake", help="Keep all cores awake while measuring; needs root.")
]


@contextmanager
def kept_awake(asked: bool) -> Iterator[None]:
    """Let no core of the machine sleep, as `tuned-adm profile latency-performance` does.

    When a lone request goes from process to process, the core of each next process is asleep.
    Waking it up takes about as long as the work that follows, above all in a virtual machine.

    Args:
        asked: whether `--awake` was given; nothing changes without it.

    Raises:
        ConfigError: this process may not keep cores awake.
    """
    if not asked:
        yield
        return
    try:
        limit = _SLEEP_LIMIT.open("wb", buffering=0)
    except OSError as error:
        raise ConfigError(f"--awake: {_SLEEP_LIMIT} cannot be used ({error}).") from error
    with limit:
        limit.write(struct.pack("i", 0))
        yield


def is_scheduler(pid: int) -> bool:
    """Whether a process is a scheduler of SGLang."""
    return Path(f"/proc/{pid}/cmdline").read_text().startswith(_SCHEDULER)


def cpu_seconds(pids: Iterable[int]) -> dict[int, float]:
    """Seconds of CPU that each process has spent so far."""
    times = {pid: psutil.Process(pid).cpu_times() for pid in pids}
    return {pid: spent.user + spent.system for pid, spent in times.items()}


@contextmanager
def scheduler_apart(pids: Iterable[int]) -> Iterator[None]:
    """Give the scheduler the first core; other processes, and this one, get the other cores.

    With a GPU, neither the front end nor a load generator takes time from the model. On a CPU they
    do, unless they run on other cores.

    Args:
        pids: ids of the server's processes.

    Raises:
        ConfigError: this process may use one core only.
    """
    usable = os.sched_getaffinity(0)
    first, *others = sorted(usable)
    if not others:
        raise ConfigError("Two cores are needed to keep the scheduler apart from the rest.")
    for pid in pids:
        _use(pid, {first} if is_scheduler(pid) else set(others))
    _use(os.getpid(), set(others))
    try:
        yield
    finally:
        _use(os.getpid(), usable)


def _use(pid: int, cores: set[int]) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)
