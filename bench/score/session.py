"""Run stock and extension in turn: start, pass the gate, measure every load, stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import NamedTuple

from bench.http_client import LoadError
from bench.load import (
    Measurement,
    Window,
    ask_each,
    closed_loop,
    open_loop,
    poisson_arrivals,
    run_loop,
)
from bench.load_generators import wrk
from bench.record import Result
from bench.run import Run
from bench.score.plan import EXTENSION, PATHS, STOCK, Case, Plan, alternating
from bench.server import MeasuredServer, empty_cache
from bench.status import packed_requests
from bench.workloads import ClosedLoop, Load

_MIN_REQUESTS = 20
_GATE_CLIENTS = 4
_GATE_TIMED = 256  # requests that show how far stock's answers depend on the batch
_ASK_S = 1.0
"""Least length of the loop that only collects answers, if wrk makes the measured load."""


class Servers(NamedTuple):
    """Both servers, which run at the same time."""

    stock: MeasuredServer
    extension: MeasuredServer

    @property
    def turns(self) -> list[tuple[str, MeasuredServer, MeasuredServer]]:
        """The path of each server, the server, and the other one, which is paused meanwhile."""
        stock, extension = self
        return [(STOCK, stock, extension), (EXTENSION, extension, stock)]


@dataclass(slots=True)
class ModelRun(Run[Plan, Result]):
    """Measures every case under every load.

    Attributes:
        logs: directory of the servers' logs.
    """

    logs: Path
    _stock_rates: dict[str, float] = field(init=False, default_factory=dict)

    def run(self, cases: Sequence[Case]) -> None:
        """Measure stock and extension in turn.

        Raises:
            GateError: their answers disagree; then no figure may be shown.
            LoadError: a server failed under load, or got requests again that its prefix cache had.
            ServerStartError: a server did not start.
        """
        if self.plan.side_by_side:
            with self.started() as servers:
                self.measure(servers, cases)
        else:
            for repeat in range(self.plan.alternations):
                self._in_turn(repeat, cases)

    def _in_turn(self, repeat: int, cases: Sequence[Case]) -> None:
        for path in PATHS:
            self.tell(f"{self.preset}: start {repeat + 1} of {path}")
            with self._server(path, repeat) as server:
                self._check_before_timing(path, server.port, cases)
                for case, load in self._loads(cases):
                    self._measure(path, repeat, server.port, case, load)

    @contextmanager
    def started(self) -> Iterator[Servers]:
        """Start each server once."""
        with self._server(STOCK, 0) as stock, self._server(EXTENSION, 0) as extension:
            yield Servers(stock, extension)

    def measure(self, servers: Servers, cases: Sequence[Case]) -> None:
        """Measure each server while the other is paused, in alternating order; see `run`."""
        for path, server, _ in servers.turns:
            self._check_before_timing(path, server.port, cases)
        for case, load in self._loads(cases):
            self.tell(f"{self.preset}: {case.shape}, {load}")
            for repeat, (path, server, other) in alternating(servers.turns, self.plan.alternations):
                with other.paused():
                    self._measure(path, repeat, server.port, case, load)

    def _loads(self, cases: Sequence[Case]) -> Iterator[tuple[Case, Load]]:
        return product(cases, self.plan.ordered_loads())

    def _server(self, path: str, repeat: int) -> MeasuredServer:
        log = self.logs / f"{self.preset}-{path}-{repeat + 1}.log"
        env = {**self.plan.env_of_both, **(self.plan.stock_env if path == STOCK else {})}
        return MeasuredServer(self.model, self.plan.server_args(path), env=env, log_path=log)

    def _check_before_timing(self, path: str, port: int, cases: Sequence[Case]) -> None:
        for case in cases:
            answers, shape = ask_each(port, case.gate), case.shape
            self.gate.hold(path, f"{self.preset} {shape}", f"{shape} gate", answers)
            if path == STOCK and self.gate.is_half:
                self._keep_of_other_batches(port, case)

    def _keep_of_other_batches(self, port: int, case: Case) -> None:
        """Show the gate how far stock's answers depend on what is computed with them."""
        shape = case.shape
        self.gate.keep(f"{shape} gate", ask_each(port, case.gate, _GATE_CLIENTS))
        for clients in (1, _GATE_CLIENTS):
            self.gate.keep(f"{shape} timed", ask_each(port, case.pool[:_GATE_TIMED], clients))

    def _measure(self, path: str, repeat: int, port: int, case: Case, load: Load) -> None:
        packed_before, shape = packed_requests(port), str(case.shape)
        rate = None
        if self.plan.radix_cache:
            empty_cache(port)
        if isinstance(load, ClosedLoop):
            seconds = _ASK_S if self.plan.by_wrk else self.plan.seconds
            window = Window(seconds, max(_MIN_REQUESTS, 2 * load.clients))
            seen = run_loop(closed_loop(port, case.pool, load.clients, window))
        else:
            window = Window(self.plan.seconds, _MIN_REQUESTS)
            rate = load.requests_per_s(self._stock_rates.get(shape, 0.0))
            arrivals = poisson_arrivals(rate, window, seed=0)
            seen = run_loop(open_loop(port, case.pool, arrivals))
        self.gate.hold(path, f"{self.preset} {shape}", f"{shape} timed", seen.answers)
        sent = seen.sent
        if self.plan.by_wrk and isinstance(load, ClosedLoop):
            seen = wrk.closed_loop(port, case.pool, load.clients, self.plan.seconds)
            sent += seen.sent
        if path == STOCK and repeat == 0 and isinstance(load, ClosedLoop):
            self._stock_rates[shape] = seen.requests_per_s
        self._check_repeats(case, sent)
        packed = packed_requests(port) - packed_before
        self.results.append(
            result_of(
                seen,
                preset=self.preset,
                shape=shape,
                load=load,
                path=path,
                repeat=repeat,
                items=case.shape.items,
                packed_share=packed / sent / case.counted,
                rate_per_s=rate,
                operation_ratio=case.operation_ratio,
            )
        )

    def _check_repeats(self, case: Case, sent: int) -> None:
        different = len(case.pool)
        if self.plan.radix_cache and not self.plan.repeated and sent > different:
            raise LoadError(
                f"{case.shape}: {sent:,} requests were sent, but only {different:,} are different; "
                "the cache had the others. Measure for fewer --seconds."
            )


def result_of(
    seen: Measurement,
    *,
    preset: str,
    shape: str,
    load: Load,
    path: str,
    repeat: int,
    items: int,
    packed_share: float,
    rate_per_s: float | None = None,
    operation_ratio: float = 1.0,
) -> Result:
    """Return the record of what a loop measured.

    Args:
        items: items per request; all other arguments are fields of `Result`.
    """
    return Result(
        preset=preset,
        shape=shape,
        load=str(load),
        closed=isinstance(load, ClosedLoop),
        path=path,
        repeat=repeat,
        rate_per_s=rate_per_s,
        **seen.figures(),
        packed_share=packed_share,
        seconds=seen.seconds,
        items_per_s=seen.requests_per_s * items,
        p90_ms=seen.percentile_ms(90),
        generator_cpu_share=seen.generator_cpu_s / seen.seconds,
        operation_ratio=operation_ratio,
    )
