"""Changes servers for tests; imported if this folder is on PYTHONPATH.

It records calls, lets a process sleep, and leaves forwards in flight.

SIGUSR2 starts the recording of calls in a process's main thread, and the next one ends it. The
record has each pair of caller and callee with the time of its first call. Only functions in files
of ours or of SGLang's count; the caller is the nearest such function, whatever libraries lie
between.

A sleep of `UNTIL_WOKEN_S` ends when the file is removed that it makes, `asleep` of the process.

Where PREFILL_ONLY_TEST_IN_FLIGHT is set, forwards on a CPU are collected one step after their
launch, as on CUDA, although they are done at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

UNTIL_WOKEN_S = 86_407.0
"""A duration that no other code sleeps, by which this sleep is recognised."""

LEFT_IN_FLIGHT = "Forwards are left in flight, for tests"
"""What a scheduler writes to its log."""

_DECODER = "sglang_prefill_ext.border.model.decoder_model"
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


class _LeavesInFlight(MetaPathFinder):
    """Changes the decoder's class as soon as it is imported."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != _DECODER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert isinstance(spec, ModuleSpec)
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            _leave_in_flight(module.SglangModel)

        loader.exec_module = execute_and_change
        return spec


def _leave_in_flight(kind: Any) -> None:
    make = kind.__init__

    def init(self: Any, runner: Any, forward_stream: Any) -> None:
        make(self, runner, forward_stream)
        if "PREFILL_ONLY_TEST_IN_FLIGHT" in os.environ and forward_stream is not None:
            self.asynchronous = True
            sys.stderr.write(f"{LEFT_IN_FLIGHT}\n")

    kind.__init__ = init


sys.meta_path.insert(0, _LeavesInFlight())
