"""Cause the faults of a schedule in a running fleet."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from bench.cores import is_scheduler
from bench.fleet.faults.load import Load
from bench.fleet.faults.schedule import Fault, Kind
from bench.fleet.faults.wires import Wire
from bench.fleet.routers import RouterProcesses
from sglang_prefill_ext.errors import ServerStartError
from sglang_prefill_ext.local_server import LocalServer

_AT_ONCE = 32  # faults that may overlap
_BACK_S = 600.0
_POLL_S = 0.05

_Target = TypeVar("_Target", bound=Hashable)


class Injuries:
    """Causes faults of the engines, the routers and the connections of one fleet.

    An engine, a router or a wire has at most one fault at a time.

    Args:
        engines, wires: one wire per engine, in the same order; routers reach engines by wires.
        routers: router processes, all of which listen.

    Attributes:
        done: faults so far, by kind.
    """

    def __init__(
        self, engines: Sequence[LocalServer], wires: Sequence[Wire], routers: RouterProcesses
    ) -> None:
        self.done: Counter[Kind] = Counter()
        self._engines = engines
        self._wires = wires
        self._routers = routers
        self._num_routers = len(routers.pids)
        self._hurt: set[Hashable] = set()
        self._changing = threading.Lock()
        self._deaths: list[list[float]] = []

    def router_died(self, begin_s: float, end_s: float) -> bool:
        """Whether a router was dying, or dead and not replaced, at any time between these two."""
        return any(begin <= end_s and begin_s <= end for begin, end in self._deaths)

    def perform(
        self,
        faults: Sequence[Fault],
        load: Load,
        on_fault: Callable[[int], None] = lambda _begun: None,
    ) -> None:
        """Cause the faults while a load runs; return when all engines and routers work again.

        Args:
            on_fault: called at each fault with the number of faults that have begun.

        Raises:
            ServerStartError: an engine or a router does not come back.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            running = []
            for begun, fault in enumerate(faults, 1):
                time.sleep(fault.pause_s)
                running.append(pool.submit(self._happen, fault, load))
                on_fault(begun)
            for each in running:
                each.result()

    def _happen(self, fault: Fault, load: Load) -> None:
        match fault.kind:
            case Kind.CLIENTS_CUT:
                load.cut_clients()
            case Kind.ENGINE_CUT:
                self._wires[fault.target % len(self._wires)].cut()
            case Kind.ENGINE_SILENT:
                with self._one_of(lambda: self._wires, fault.target) as wire:
                    wire.silence()
                    time.sleep(fault.seconds)
                    wire.resume()
            case Kind.SCHEDULER_STOPPED:
                with self._one_of(lambda: self._engines, fault.target) as engine:
                    _stand_still([each for each in engine.pids if is_scheduler(each)], fault)
            case Kind.ENGINE_STOPPED:
                with self._one_of(lambda: self._engines, fault.target) as engine, engine.paused():
                    time.sleep(fault.seconds)
            case Kind.ENGINE_KILLED:
                with self._one_of(lambda: self._engines, fault.target) as engine:
                    _kill(engine)
            case Kind.ROUTER_STOPPED:
                with self._one_of(self._routers.listening, fault.target) as pid:
                    _stand_still([pid], fault)
            case Kind.ROUTER_KILLED:
                self._end_router(fault, signal.SIGKILL)
            case Kind.ROUTER_TERMINATED:
                self._end_router(fault, signal.SIGTERM)
        with self._changing:
            self.done[fault.kind] += 1

    def _end_router(self, fault: Fault, number: signal.Signals) -> None:
        """Send a signal that ends one router, and wait until all routers listen again."""
        with self._one_of(self._routers.listening, fault.target) as pid:
            death = [time.monotonic(), math.inf]
            self._deaths.append(death)
            os.kill(pid, number)
            limit_s = death[0] + _BACK_S
            while len(now := self._routers.listening()) < self._num_routers or pid in now:
                if time.monotonic() > limit_s:
                    raise ServerStartError(f"a router has not come back within {_BACK_S:g} s.")
                time.sleep(_POLL_S)
            death[1] = time.monotonic()

    @contextmanager
    def _one_of(self, choices: Callable[[], Sequence[_Target]], target: int) -> Iterator[_Target]:
        """Wait for one of the choices without a fault, and reserve it while the body runs."""
        while True:
            with self._changing:
                free = [each for each in choices() if each not in self._hurt]
                if free:
                    chosen = free[target % len(free)]
                    self._hurt.add(chosen)
                    break
            time.sleep(_POLL_S)
        try:
            yield chosen
        finally:
            with self._changing:
                self._hurt.discard(chosen)


def _stand_still(pids: Sequence[int], fault: Fault) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(fault.seconds)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _kill(engine: LocalServer) -> None:
    assert engine.pid is not None, "it was started"
    os.killpg(engine.pid, signal.SIGKILL)
    engine.stop()
    engine.start()
    engine.wait_ready(_BACK_S)
