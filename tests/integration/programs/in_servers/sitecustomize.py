"""Records calls inside a server, and lets it sleep; imported if this folder is on PYTHONPATH.

SIGUSR2 starts the recording of calls in a process's main thread, and the next one ends it. The
record has each pair of caller and callee with the time of its first call. Only functions in files
of ours or of SGLang's count; the caller is the nearest such function, whatever libraries lie
between.

A sleep of `UNTIL_WOKEN_S` ends when the file is removed that it makes, `asleep` of the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

UNTIL_WOKEN_S = 86_407.0
"""A duration that no other code sleeps, by which this sleep is recognised."""

_PACKAGES = ("sglang_prefill_ext.", "sglang.")

_edges: dict[tuple[str, str], int] = {}


def _module(frame: FrameType) -> str:
    """The module of a function of ours or of SGLang's; empty for any other."""
    name: str = frame.f_globals.get("__name__", "")
    return name if name.startswith(_PACKAGES) else ""


def _record(frame: FrameType, event: str, _argument: Any) -> None:
    if event != "call" or not (callee := _module(frame)):
        return
    caller, below = "", frame.f_back
    while below is not None and not (caller := _module(below)):
        below = below.f_back
    edge = (caller, callee)
    if edge not in _edges:
        _edges[edge] = time.monotonic_ns()


def _switch(_number: int, _frame: FrameType | None) -> None:
    name = Path(os.environ["PREFILL_ONLY_TEST_TRACES"], str(os.getpid()))
    if sys.getprofile() is None:
        _edges.clear()
        name.with_suffix(".on").touch()
        sys.setprofile(_record)
        return
    sys.setprofile(None)
    written = name.with_suffix(".tmp")
    written.write_text(json.dumps([[*edge, first] for edge, first in _edges.items()]))
    written.rename(name.with_suffix(".json"))


signal.signal(signal.SIGUSR2, _switch)


def asleep(pid: int) -> Path:
    """The file that exists while a process sleeps; removing it wakes the process."""
    return Path(tempfile.gettempdir(), f"prefill-only-test-{pid}.asleep")


def _sleep(seconds: float) -> None:
    if seconds != UNTIL_WOKEN_S:
        return _sleep_for(seconds)
    here = asleep(os.getpid())
    here.touch()
    while here.exists():
        _sleep_for(0.002)


_sleep_for = time.sleep
time.sleep = _sleep
