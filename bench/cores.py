"""Cores for what is measured: which processes have them, for how long, and that they stay awake
(Linux)."""

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
"""Of PM QoS: the longest time in us that waking up a core may take, while the file is open."""


Awake: TypeAlias = Annotated[
    bool, typer.Option("--awake", help="No core sleeps meanwhile; needs root.")
]


@contextmanager
def kept_awake(asked: bool) -> Iterator[None]:
    """Let no core of the machine sleep, as `tuned-adm profile latency-performance` does.

    Where a lone request goes from process to process, each finds its core asleep, and waking it
    up takes about as long as what it then does, above all in a virtual machine.

    Args:
        asked: whether `--awake` was given; nothing changes without it.

    Raises:
        ConfigError: this process may not ask for it.
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
    """Give the scheduler the first core, and all others the rest, this process included.

    On a server with a GPU neither the front end nor a load generator takes time from the model;
    here they do, unless they are kept apart.

    Args:
        pids: of the server's processes.

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
