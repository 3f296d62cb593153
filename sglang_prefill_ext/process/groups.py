"""Lists and signals the processes of a group; every server that is started here has its own."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil

_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def members_of(group: int) -> list[int]:
    """Living processes of a process group; a zombie has ended and does not count."""
    members = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):  # it has just ended
            if os.getpgid(pid) == group and psutil.Process(pid).status() not in _ENDED:
                members.append(pid)
    return members


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to all processes of a group; harmless where none is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
