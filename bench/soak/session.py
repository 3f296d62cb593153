"""A long steady load on one real server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.floor import ModelShape
from bench.http_client import KEEP_ALIVE_ENV, LoadError, connect, post_bytes
from bench.load import Measurement, Window, closed_loop, open_loop, run_loop
from bench.score_gate import ScoreGate
from bench.server import MeasuredServer
from bench.soak.windows import SoakWindow, Verdict, verdict_of, windows_of
from bench.status import packed_counters
from bench.workloads import Shape, draw_requests, score_body

_POOL = 64
_STOCK = "x-prefill-only: off"

Reports = list[dict[str, Any]]
"""What the processes of a server report of their garbage collection."""


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """What to run.

    Attributes:
        seconds: length of the load.
        load: share of the rate that a closed loop reaches just before.
        shape: of all requests.
        clients: of that closed loop.
        saturation_seconds: its least length.
        every_s: how often memory is sampled.
        dtype: of the model; decides the gate's tolerance.
        extension_args: further flags of the server.
        seed: of the requests.
    """

    seconds: float
    load: float
    shape: Shape
    clients: int = 8
    saturation_seconds: float = 20.0
    every_s: float = 5.0
    dtype: str = "float32"
    extension_args: tuple[str, ...] = ()
    seed: int = 0


@dataclass(slots=True)
class SoakRun:
    """One run on one model.

    Attributes:
        preset: the model's name.
        model: its directory.
        plan: what to run.
        tell: told what happens, in a few words; never a figure.
        gate: of all answers: the packed path's against the stock path's on the same server.
        rate_per_s: requests per second that were offered.
        reports: of garbage collection, after the load.
    """

    preset: str
    model: Path
    plan: SoakPlan
    tell: Callable[[str], None]
    gate: ScoreGate = field(init=False)
    rate_per_s: float = 0.0
    windows: list[SoakWindow] = field(default_factory=list)
    reports: Reports = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = ScoreGate(self.plan.dtype)

    def run(self) -> Verdict:
        """Load the server and compare the end with the start.

        Raises:
            GateError: packed answers differ from stock's; no figure may be shown then.
            LoadError: the server failed under load, or did not pack.
            ServerStartError: it did not start.
        """
        plan = self.plan
        args = ["--dtype", plan.dtype, "--enable-prefill-only", *plan.extension_args]
        log = self.model.parent / f"{self.preset}-soak.log"
        self.tell(f"{self.preset}: start")
        with MeasuredServer(self.model, args, env=KEEP_ALIVE_ENV, log_path=log) as server:
            pool = self._gated_pool(server.port)
            self.rate_per_s = plan.load * self._capacity(server.port, pool)
            self.tell(f"{self.preset}: {plan.seconds:g} s at {plan.load:.0%}")
            before = run_loop(gc_reports(server.port))
            packed = run_loop(packed_counters(server.port)).requests
            seen, samples = run_loop(self._load(server.port, pool, before))
            packed = run_loop(packed_counters(server.port)).requests - packed
            self.reports = run_loop(gc_reports(server.port))
        if packed != seen.sent:
            raise LoadError(f"only {packed} of {seen.sent} requests took the packed path")
        self._check("soak", seen)
        begin_s = seen.ended_s[-1] - seen.seconds
        ended_s = [each - begin_s for each in seen.ended_s]
        self.windows = windows_of(ended_s, seen.latencies_s, samples)
        return verdict_of(self.windows, before, self.reports)

    def _gated_pool(self, port: int) -> list[bytes]:
        """Return requests whose packed answers were found to be the stock path's."""
        vocabulary = ModelShape.from_directory(self.model).vocabulary
        requests = draw_requests(self.plan.shape, vocabulary, _POOL, self.plan.seed)
        bodies = [score_body(request, token_logprobs=True) for request in requests]
        once = Window(0.0, _POOL)
        stock = [post_bytes("/v1/score", body, _STOCK) for body in bodies]
        self.gate.keep("all", run_loop(closed_loop(port, stock, 1, once)).answers)
        pool = [post_bytes("/v1/score", body) for body in bodies]
        self._check("gate", run_loop(closed_loop(port, pool, 1, once)))
        return pool

    def _capacity(self, port: int, pool: Sequence[bytes]) -> float:
        self.tell(f"{self.preset}: {self.plan.clients} clients")
        window = Window(self.plan.saturation_seconds, 2 * self.plan.clients)
        seen = run_loop(closed_loop(port, pool, self.plan.clients, window))
        self._check("saturation", seen)
        return seen.requests_per_s

    async def _load(
        self, port: int, pool: Sequence[bytes], processes: Reports
    ) -> tuple[Measurement, list[tuple[float, dict[str, float]]]]:
        """Offer the load at even distances, so that only the server makes a difference."""
        arrivals = np.arange(1, self.plan.seconds * self.rate_per_s) / self.rate_per_s
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

    def _check(self, what: str, seen: Measurement) -> None:
        self.gate.check(f"{self.preset}, {what}", "all", seen.answers)


def memory_mib(processes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Resident memory of processes, by role and id."""
    return {
        f"{each['role']} {each['pid']}": psutil.Process(each["pid"]).memory_info().rss / 2**20
        for each in processes
    }


async def gc_reports(port: int) -> Reports:
    """Ask every process of a server for its garbage collection so far.

    Raises:
        LoadError: the server does not answer, or some of its processes are silent.
    """
    connection = await connect(port)
    try:
        asked = post_bytes("/prefill_only/gc", b'{"action": "stats"}')
        answer = json.loads(await connection.send(asked))
    finally:
        connection.close()
    if not answer["complete"]:
        raise LoadError("some processes did not report their garbage collection")
    reports: Reports = answer["processes"]
    return reports
