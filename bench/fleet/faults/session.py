"""Run a fleet with clients and faults, from its start to the verdict."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from bench.cores import SINGLE_THREADED
from bench.fleet.faults.asks import End, Outcome, asks_of
from bench.fleet.faults.checks import has_memory, memory_of, require, work_at
from bench.fleet.faults.injuries import Injuries
from bench.fleet.faults.load import Load
from bench.fleet.faults.schedule import Fault
from bench.fleet.faults.wires import wires_to
from bench.fleet.routers import running_routers
from bench.score.plan import QUIET_ARGS
from sglang_prefill_ext.local_server import LocalServer

_PAUSE_S = 0.2  # of a client; leaves CPU time for engines and routers that start meanwhile
_TOLD_EVERY = 25  # faults
_SHOWN_CHARS = 120  # of an error
_ENGINE_ARGS = ("--dtype", "float32", "--enable-prefill-only", *QUIET_ARGS)
_ROUTER_ARGS = ("--extra-work=10",)  # divides all but the smallest requests at any load


@dataclass(frozen=True, slots=True)
class FaultsResult:
    """How all requests of a run ended.

    Attributes:
        seconds: time from the first fault to the end of the last one.
        faults: kind -> number of faults.
        requests: all requests; each ended in one of the four ways below.
        errors: beginning of a clear error, without numbers -> how often it came.
        sent_again: requests that were sent again because a router died or the clients'
            connections were cut.
        late: number of all requests that ended after their deadline.
        p50_ms, p99_ms, longest_ms: time from the first attempt to the end, over all requests.
    """

    preset: str
    engines: int
    routers: int
    clients: int
    deadline_s: float
    seconds: float
    faults: dict[str, int]
    requests: int
    right: int
    clear_errors: int
    wrong: int
    lost: int
    late: int
    errors: dict[str, int]
    sent_again: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


@dataclass(slots=True)
class FaultsRun:
    """One run on one model.

    Attributes:
        model: directory of a decoder reranker, named as its preset; logs are written beside it.
        tell: told what happens, in a few words.
        unwanted: requests that were wrong, lost or late.
    """

    model: Path
    faults: Sequence[Fault]
    engines: int
    routers: int
    clients: int
    deadline_s: float
    tell: Callable[[str], None]
    unwanted: list[Outcome] = field(default_factory=list)

    def run(self) -> FaultsResult:
        """Run load and faults; then check that engines and routers keep no memory and no work.

        Raises:
            FaultsError: engines or routers keep something.
            ServerStartError: an engine or a router does not start, or does not come back.
        """
        with ExitStack() as stack:
            engines = [stack.enter_context(self._engine(n)) for n in range(self.engines)]
            wires = stack.enter_context(wires_to([each.port for each in engines]))
            urls = [f"http://127.0.0.1:{each.port}" for each in wires]
            flags = (*_ROUTER_ARGS, f"--processes={self.routers}")
            log = self.model.parent / "faults-routers.log"
            routers = stack.enter_context(running_routers(urls, *flags, log_path=log))
            require(lambda: len(routers.listening()) == self.routers, "some routers do not listen")
            asks = asks_of(engines[0].port)
            before = [memory_of(each.port) for each in engines]
            injuries = Injuries(engines, wires, routers)
            load = Load(
                *(routers.port, asks, self.clients),
                deadline_s=self.deadline_s,
                pause_s=_PAUSE_S,
                router_died=injuries.router_died,
            )
            with load:
                begin_s = time.monotonic()
                injuries.perform(self.faults, load, partial(self._tell_of, load))
                seconds = time.monotonic() - begin_s
                load.wait_more(4 * self.clients)
            self.unwanted = load.unwanted()
            for engine, memory in zip(engines, before, strict=True):
                require(partial(has_memory, memory, engine.port), "an engine keeps memory")
            require(lambda: not work_at(routers), "a router keeps work")
        return self._result(load, injuries, seconds)

    @contextmanager
    def _engine(self, number: int) -> Iterator[LocalServer]:
        self.tell(f"starting engine {number + 1} of {self.engines}")
        log = self.model.parent / f"faults-engine-{number}.log"
        with LocalServer(self.model, _ENGINE_ARGS, env=SINGLE_THREADED, log_path=log) as engine:
            engine.wait_settled()
            yield engine

    def _tell_of(self, load: Load, begun: int) -> None:
        if begun % _TOLD_EVERY == 0:
            ends = ", ".join(f"{count} {end}" for end, count in sorted(load.ends().items()))
            self.tell(f"{begun} of {len(self.faults)} faults: {ends}")

    def _result(self, load: Load, injuries: Injuries, seconds: float) -> FaultsResult:
        ends, outcomes = load.ends(), load.outcomes
        clear = (each for each in outcomes if each.end is End.CLEAR)
        times_ms = np.array([each.seconds for each in outcomes]) * 1e3
        return FaultsResult(
            preset=self.model.name,
            engines=self.engines,
            routers=self.routers,
            clients=self.clients,
            deadline_s=self.deadline_s,
            seconds=seconds,
            faults={str(kind): count for kind, count in sorted(injuries.done.items())},
            requests=len(outcomes),
            right=ends[End.RIGHT],
            clear_errors=ends[End.CLEAR],
            wrong=ends[End.WRONG],
            lost=ends[End.LOST],
            late=len(load.late()),
            errors=dict(Counter(kind_of(each.why) for each in clear)),
            sent_again=sum(each.again > 0 for each in outcomes),
            p50_ms=float(np.percentile(times_ms, 50)),
            p99_ms=float(np.percentile(times_ms, 99)),
            longest_ms=float(times_ms.max()),
        )


def kind_of(error: str) -> str:
    """Return an error's message without the parts that differ each time."""
    return re.sub(r"http://\S+|\d+(?= of \d| rows)|(?<=of )\d+", "N", error)[:_SHOWN_CHARS]
