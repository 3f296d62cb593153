"""Put a long steady load on real servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from bench.http_client import LoadError, post_bytes
from bench.load import Measurement, Window, ask_each, closed_loop, open_loop, run_loop
from bench.run import Run
from bench.soak.subjects import Reports, running
from bench.soak.windows import SoakWindow, Verdict, verdict_of, windows_of
from bench.workloads import USUAL_SHAPE, Shape, draw_requests, score_body
from sglang_prefill_ext.sizing.model import ModelShape

_POOL = 64
_STOCK = "x-prefill-only: off"


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """What to run.

    Attributes:
        seconds: length of the load.
        load: share of the rate that a closed loop reaches right before.
        shape: shape of all requests.
        clients: clients of that closed loop.
        saturation_seconds: least length of that closed loop.
        every_s: how often memory is sampled.
        dtype: of the model; decides the gate's tolerance.
        extension_args: further flags of the server, or of every engine.
        engines: number of engines behind a router, with one core each; 0 for one server without a
            router.
    """

    seconds: float
    load: float
    shape: Shape = USUAL_SHAPE
    clients: int = 8
    saturation_seconds: float = 20.0
    every_s: float = 5.0
    dtype: str = "float32"
    extension_args: tuple[str, ...] = ()
    engines: int = 0


@dataclass(slots=True)
class SoakRun(Run[SoakPlan, SoakWindow]):
    """One run; every result is a window of time.

    The gate compares all packed answers with those of the stock path of the same server.

    Attributes:
        rate_per_s: requests per second that were offered.
        reports: reports of garbage collection after the load.
    """

    rate_per_s: float = 0.0
    reports: Reports = field(init=False, default_factory=list)

    def run(self) -> Verdict:
        """Load the server and compare the end with the start.

        Raises:
            GateError: packed answers differ from stock's; then no figure may be shown.
            LoadError: the server failed under load, or did not pack.
            ServerStartError: a server did not start.
        """
        plan = self.plan
        flags = ("--dtype", plan.dtype, *plan.extension_args)
        self.tell(f"{self.preset}: start")
        with running(self.model, plan.engines, self.tell, *flags) as subject:
            pool = self._gated_pool(subject.port)
            self.rate_per_s = plan.load * self._capacity(subject.port, pool)
            self.tell(f"{self.preset}: {plan.seconds:g} s at {plan.load:.0%}")
            before, packed = subject.gc_reports(), subject.packed()
            seen, samples = run_loop(self._load(subject.port, pool, before))
            packed, self.reports = subject.packed() - packed, subject.gc_reports()
        if packed != seen.sent:
            raise LoadError(f"only {packed} of {seen.sent} requests took the packed path")
        self._check("soak", seen.answers)
        begin_s = seen.ended_s[-1] - seen.seconds
        ended_s = [each - begin_s for each in seen.ended_s]
        self.results = windows_of(ended_s, seen.latencies_s, samples)
        return verdict_of(self.results, before, self.reports)

    def _gated_pool(self, port: int) -> list[bytes]:
        """Return requests whose packed answers were found equal to those of the stock path."""
        vocabulary = ModelShape.from_directory(self.model).vocabulary
        requests = draw_requests(self.plan.shape, vocabulary, _POOL, seed=0)
        bodies = [score_body(request, token_logprobs=True) for request in requests]
        stock = [post_bytes("/v1/score", body, _STOCK) for body in bodies]
        self.gate.keep("all", ask_each(port, stock))
        pool = [post_bytes("/v1/score", body) for body in bodies]
        self._check("gate", ask_each(port, pool))
        return pool

    def _capacity(self, port: int, pool: Sequence[bytes]) -> float:
        self.tell(f"{self.preset}: {self.plan.clients} clients")
        window = Window(self.plan.saturation_seconds, 2 * self.plan.clients)
        seen = run_loop(closed_loop(port, pool, self.plan.clients, window))
        self._check("saturation", seen.answers)
        return seen.requests_per_s

    async def _load(
        self, port: int, pool: Sequence[bytes], processes: Reports
    ) -> tuple[Measurement, list[tuple[float, dict[str, float]]]]:
        """Send requests at equal distances, so that only the server causes variation."""
        arrivals = np.arange(1, max(2.0, self.plan.seconds * self.rate_per_s)) / self.rate_per_s
        samples: list[tuple[float, dict[str, float]]] = []
        begin_s = time.perf_counter()

        async def sample() -> None:
            while True:
                await asyncio.sleep(self.plan.every_s)
                samples.append((time.perf_counter() - begin_s, memory_mib(processes)))

        sampling = asyncio.ensure_future(sample())
        try:
            seen = await open_loop(port, pool, arrivals)
        finally:
            sampling.cancel()
        samples.append((time.perf_counter() - begin_s, memory_mib(processes)))
        return seen, samples

    def _check(self, what: str, answers: Mapping[int, bytes]) -> None:
        self.gate.check(f"{self.preset}, {what}", "all", answers)


def memory_mib(processes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Role and id of a process -> its resident memory in MiB."""
    return {
        f"{each['role']} {each['pid']}": psutil.Process(each["pid"]).memory_info().rss / 2**20
        for each in processes
    }
