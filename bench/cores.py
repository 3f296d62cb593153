"""Cores for a server's processes, so that what one of them costs is seen on its own (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sglang_prefill_ext.errors import ConfigError

SINGLE_THREADED = {"OMP_NUM_THREADS": "1"}
"""Environment of a server whose scheduler gets one core."""

_SCHEDULER = "sglang::scheduler"  # SGLang names its processes after their roles


def is_scheduler(pid: int) -> bool:
    """Whether a process is a scheduler of SGLang."""
    return Path(f"/proc/{pid}/cmdline").read_text().startswith(_SCHEDULER)


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
