"""Measure the latency that a router adds at part load, and the highest rate that it can serve.

``python -m bench.fleet.latency`` measures one engine, and the same engine behind one and two router
processes, in turn. The same requests arrive at the same random times in all three cases. The
engine's scheduler has a core of its own, because a model on a GPU takes no core from a router.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Annotated

import typer

from bench.command import Bench
from bench.cores import Awake, cpu_seconds, kept_awake, scheduler_apart
from bench.fleet.engines import engine, router
from bench.fleet.latency_report import ALONE, LatencyResult, added, save_plot
from bench.fleet.routers import RouterProcesses
from bench.fleet.turns import cases_of
from bench.load import Measurement, Window, closed_loop, open_loop, poisson_arrivals, run_loop
from bench.options import Name, Preset, Seconds, ShapeText, TurnCount
from bench.score.plan import Case, alternating
from bench.score.score_gate import ScoreGate


@dataclass(slots=True)
class LatencyRun:
    """Measures one engine, alone and behind routers.

    Attributes:
        engine_port: port of the engine.
        routers: name -> router over this engine.
        load: share of the rate that the engine alone reaches with `clients`.
        seconds: length of every loop.
    """

    preset: str
    engine_port: int
    routers: dict[str, RouterProcesses]
    load: float
    clients: int
    seconds: float
    turns: int
    gate: ScoreGate = field(default_factory=lambda: ScoreGate("float32"))
    results: list[LatencyResult] = field(default_factory=list)

    def run(self, case: Case) -> None:
        """Measure all subjects in every turn, see `alternating`.

        Raises:
            GateError: answers differ.
        """
        window = Window(self.seconds, len(case.pool))
        seen = run_loop(closed_loop(self.engine_port, case.pool, self.clients, window))
        self.gate.keep("all", seen.answers)
        rate = self.load * seen.requests_per_s
        for turn, subject in alternating([ALONE, *self.routers], self.turns):
            self._measure(subject, case, turn, rate)
            self._measure(subject, case, turn, 0.0)

    def _measure(self, subject: str, case: Case, turn: int, rate_per_s: float) -> None:
        routers = self.routers.get(subject)
        port = self.engine_port if routers is None else routers.port
        pids = [] if routers is None else routers.pids
        before = sum(cpu_seconds(pids).values())
        seen = run_loop(self._loop(port, case, turn, rate_per_s))
        cpu_s = sum(cpu_seconds(pids).values()) - before
        self.gate.check(subject, "all", seen.answers)
        self.results.append(
            LatencyResult(
                preset=self.preset,
                shape=str(case.shape),
                subject=subject,
                turn=turn,
                rate_per_s=rate_per_s,
                clients=0 if rate_per_s else self.clients,
                **seen.figures(),
                router_cpu_ms=cpu_s / seen.sent * 1e3,
            )
        )

    async def _loop(self, port: int, case: Case, turn: int, rate_per_s: float) -> Measurement:
        window = Window(self.seconds, len(case.pool))
        if not rate_per_s:
            return await closed_loop(port, case.pool, self.clients, window)
        return await open_loop(port, case.pool, poisson_arrivals(rate_per_s, window, turn))


def main(
    preset: Preset = "tiny",
    shape: ShapeText = "60+2x50",
    load: Annotated[float, typer.Option(min=0.01, help="Share of the engine's capacity.")] = 0.5,
    clients: Annotated[int, typer.Option(min=1, help="Clients of the closed loops.")] = 8,
    processes: Annotated[
        int, typer.Option(min=2, help="Processes of the second router; the first has one.")
    ] = 2,
    seconds: Seconds = 10.0,
    turns: TurnCount = 5,
    awake: Awake = False,
    name: Name = "fleet-latency",
) -> None:
    """Measure an engine alone, behind one router process, and behind several, in turn."""
    bench = Bench("bench.fleet.latency", name)
    with bench.measured_model(preset) as (model, status), ExitStack() as stack:
        stack.enter_context(kept_awake(awake))
        status.update("starting the engine")
        server = stack.enter_context(engine(model, "engine"))
        stack.enter_context(scheduler_apart(server.pids))  # routers inherit this process's cores
        routers = {
            "behind a router": stack.enter_context(router([server.port])),
            f"behind {processes} routers": stack.enter_context(router([server.port], processes)),
        }
        status.update("measuring")
        run = LatencyRun(preset, server.port, routers, load, clients, seconds, turns)
        run.run(*cases_of(model, [shape]))
    found = added(run.results)
    bench.report(run.gate, run.results, *found)
    save_plot(bench.picture, found, f"{preset}, {shape}, {bench.title}")
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
