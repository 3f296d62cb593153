"""Measure stock, one scheduler and several by a closed loop each, and the CPU time of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.cores import cpu_seconds, is_scheduler
from bench.load import Measurement, Window, closed_loop, run_loop
from bench.schedulers.model import Costs, Machine, bound
from bench.score import plan
from bench.score.plan import QUIET_ARGS, make_cases, server_flags
from bench.score.score_gate import ScoreGate
from bench.server import MeasuredServer
from bench.status import PackedCounters, packed_counters
from bench.workloads import Shape
from sglang_prefill_ext.local_server.environment import has_accelerator
from sglang_prefill_ext.shared_device.placement import usable_cores

STOCK = 0
"""Used as number of schedulers for SGLang without the extension."""

_MIN_REQUESTS = 20
_NOTHING = PackedCounters(0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class SchedulersResult:
    """One closed loop on one server.

    Attributes:
        schedulers: how many; 0 for stock.
        requests, seconds, requests_per_s, p50_ms, p99_ms: of the counted answers.
        requests_per_forward: None for stock.
        python_ms, device_ms, front_ms, cpu_ms: of one request, see `Costs`. Stock's device time is
            not known and counts as Python time.
        predicted_per_s: rate by the model, from the costs with one scheduler; None for stock.
        bound_by: what is busiest according to the model; empty for stock.
    """

    preset: str
    shape: str
    clients: int
    schedulers: int
    requests: int
    seconds: float
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    requests_per_forward: float | None
    python_ms: float
    device_ms: float
    front_ms: float
    cpu_ms: float
    predicted_per_s: float | None
    bound_by: str


@dataclass(slots=True)
class SchedulersRun:
    """All measurements on one model.

    Attributes:
        model: its directory, named after the preset.
        seconds: least length of each loop.
        tell: called with a few words about what happens.
        gate: compares the extension's answers with stock's, by number of schedulers.
    """

    model: Path
    shape: Shape
    clients: int
    seconds: float
    tell: Callable[[str], None]
    results: list[SchedulersResult] = field(default_factory=list)
    gate: ScoreGate = field(default_factory=lambda: ScoreGate("float32"))
    _costs_of_one: Costs | None = None

    def run(self, numbers: Iterable[int]) -> None:
        """Measure stock, one scheduler, and each of the other numbers.

        Raises:
            GateError: stock and extension disagree.
        """
        (case,) = make_cases(self.model, [self.shape])
        for schedulers in (STOCK, 1, *sorted(set(numbers) - {STOCK, 1})):
            self.tell(f"{self.model.name}: {name_of(schedulers)}")
            log = self.model.parent / f"schedulers-{schedulers}.log"
            args = [*QUIET_ARGS, *flags_of(schedulers)]
            with MeasuredServer(self.model, args, log_path=log) as server:
                self._measure(schedulers, server.port, server.pids, case.pool)

    def _measure(self, schedulers: int, port: int, pids: list[int], pool: list[bytes]) -> None:
        counters_before = _counters(schedulers, port)
        cpu_before = cpu_seconds(pids)
        window = Window(self.seconds, max(_MIN_REQUESTS, 2 * self.clients))
        seen = run_loop(closed_loop(port, pool, self.clients, window))
        cpu = {pid: end - cpu_before[pid] for pid, end in cpu_seconds(pids).items()}
        counted = _counters(schedulers, port).since(counters_before)
        name, shape = name_of(schedulers), str(self.shape)
        self.gate.hold(name, name, shape, seen.answers)
        costs = costs_of(seen, cpu, set(filter(is_scheduler, pids)), counted.busy_s)
        if schedulers == 1:
            self._costs_of_one = costs
        self.results.append(self._result(schedulers, seen, counted, costs))

    def _result(
        self, schedulers: int, seen: Measurement, counted: PackedCounters, costs: Costs
    ) -> SchedulersResult:
        predicted: tuple[str, float | None] = ("", None)
        if schedulers and self._costs_of_one is not None:
            predicted = bound(self._costs_of_one, schedulers, this_machine())
        return SchedulersResult(
            preset=self.model.name,
            shape=str(self.shape),
            clients=self.clients,
            schedulers=schedulers,
            **seen.figures(),
            seconds=seen.seconds,
            requests_per_forward=seen.sent / counted.forwards if counted.forwards else None,
            python_ms=costs.python_s * 1e3,
            device_ms=costs.device_s * 1e3,
            front_ms=costs.front_s * 1e3,
            cpu_ms=costs.cpu_s * 1e3,
            predicted_per_s=predicted[1],
            bound_by=predicted[0],
        )


def this_machine() -> Machine:
    """Describe this machine for the model; a GPU counts as one without CUDA MPS."""
    cores = len(usable_cores())
    if has_accelerator():
        return Machine(cores)
    return Machine(cores, asynchronous=False, overlap=1.0)


def name_of(schedulers: int) -> str:
    if schedulers == STOCK:
        return "stock"
    return f"{schedulers} scheduler{'s' if schedulers > 1 else ''}"


def flags_of(schedulers: int) -> list[str]:
    """Flags of a server with this number of schedulers."""
    if schedulers == STOCK:
        return server_flags(plan.STOCK)
    return server_flags(plan.EXTENSION, "--prefill-only-schedulers", str(schedulers))


def costs_of(
    seen: Measurement, cpu_s: Mapping[int, float], schedulers: set[int], busy_s: float
) -> Costs:
    """Compute the costs of one request.

    Args:
        cpu_s: process id -> CPU seconds, for each process of the server.
        schedulers: process ids of the schedulers.
        busy_s: seconds for which packed forwards kept the device busy, summed over schedulers.
    """
    others = [spent for pid, spent in cpu_s.items() if pid not in schedulers]
    python_s, device_s = sum(cpu_s[pid] for pid in schedulers), busy_s
    if not has_accelerator():  # the model computes in the schedulers' own CPU time
        device_s = min(busy_s, python_s)  # by the clock they were busy while others had the core
        python_s -= device_s
    total = sum(cpu_s.values()) + seen.generator_cpu_s
    return Costs(
        python_s=python_s / seen.sent,
        device_s=device_s / seen.sent,
        front_s=max(others, default=0.0) / seen.sent,
        cpu_s=total / seen.sent,
    )


def _counters(schedulers: int, port: int) -> PackedCounters:
    return packed_counters(port) if schedulers else _NOTHING
