"""Measure mixed lengths on real servers, one variant after the other."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from bench.http_client import LoadError, post_bytes
from bench.load import (
    Measurement,
    Window,
    ask_each,
    closed_loop,
    open_loop,
    poisson_arrivals,
    run_loop,
)
from bench.mixed.mix import SATURATED_BY, VARIANTS, Mix, MixPlan, MixResult, draw_mix, slowdowns
from bench.run import Run
from bench.score.plan import STOCK, server_flags
from bench.server import MeasuredServer
from bench.status import PackedCounters, packed_counters
from bench.workloads import ScoreRequest, Shape, draw_requests, score_body
from sglang_prefill_ext.sizing.model import ModelShape

_GATE_PER_LENGTH = 4
_IDLE_TURNS, _IDLE_PER_TURN = 5, 30  # several turns, so that one busy moment counts little
_MIN_PER_LENGTH = 30
_SATURATION_POOL = 512


@dataclass(slots=True)
class MixRun(Run[MixPlan, MixResult]):
    """Measures every variant under every load."""

    _rates: dict[str, float] = field(init=False, default_factory=dict)

    def run(self) -> None:
        """Measure all variants, stock first.

        Raises:
            GateError: a variant's answers differ from stock's; then no figure may be shown.
            LoadError: a server failed under load.
            ServerStartError: a server did not start.
        """
        for variant, own in VARIANTS.items():
            self.tell(f"{self.preset}: start of {variant}")
            log = self.model.parent / f"{self.preset}-mixed.log"
            args = server_flags(variant, *self.plan.extension_args, *own, dtype=self.plan.dtype)
            with MeasuredServer(self.model, args, log_path=log) as server:
                self._check_before_timing(variant, server.port)
                idle_ms = self._idle_ms(variant, server.port)
                if variant in SATURATED_BY:
                    self._saturate(variant, server.port)
                for load_of in list(self._rates) if variant != STOCK else ["stock"]:
                    self._measure(variant, server.port, load_of, idle_ms)

    @property
    def _vocabulary(self) -> int:
        return ModelShape.from_directory(self.model).vocabulary

    def _check_before_timing(self, variant: str, port: int) -> None:
        pool = [
            _score(request, token_logprobs=True)
            for length in self.plan.lengths
            for request in self._others(length, _GATE_PER_LENGTH)
        ]
        self._compare(variant, "gate", ask_each(port, pool))

    def _idle_ms(self, variant: str, port: int) -> dict[int, float]:
        """Median latency of every length with one client, over turns of all lengths."""
        self.tell(f"{self.preset}: {variant}, every length alone")
        pools = {
            length: [_score(request) for request in self._others(length, _IDLE_PER_TURN + 1)]
            for length in self.plan.lengths
        }
        latencies_s: dict[int, list[float]] = {length: [] for length in pools}
        for _ in range(_IDLE_TURNS):
            for length, pool in pools.items():
                seen = run_loop(closed_loop(port, pool, 1, Window(0.0, _IDLE_PER_TURN)))
                latencies_s[length] += seen.latencies_s
        return {length: statistics.median(each) * 1e3 for length, each in latencies_s.items()}

    def _saturate(self, variant: str, port: int) -> None:
        """Measure and keep the rate that the mix reaches in a closed loop."""
        self.tell(f"{self.preset}: {variant}, {self.plan.clients} clients")
        pool = _pool(self._mix(_SATURATION_POOL))
        window = Window(self.plan.saturation_seconds, 2 * self.plan.clients)
        seen = run_loop(closed_loop(port, pool, self.plan.clients, window))
        self._compare(variant, "timed", seen.answers)
        self._rates[SATURATED_BY[variant]] = seen.requests_per_s

    def _measure(self, variant: str, port: int, load_of: str, idle_ms: dict[int, float]) -> None:
        rate = self.plan.load * self._rates[load_of]
        self.tell(f"{self.preset}: {variant}, load {self.plan.load:g} of {load_of}")
        window = Window(self.plan.seconds, _MIN_PER_LENGTH * len(self.plan.lengths))
        arrivals = poisson_arrivals(rate, window, self.plan.seed)
        mix = self._mix(len(arrivals))
        before = self._counters(variant, port)
        seen = run_loop(open_loop(port, _pool(mix), arrivals))
        after = self._counters(variant, port)
        self._compare(variant, "timed", seen.answers)
        shared = None
        if before is not None and after is not None:
            shared = requests_per_forward(after.since(before), seen.sent)
        figures = slowdowns(mix, in_order_of_arrival(seen), idle_ms)
        self.results.append(
            MixResult(
                preset=self.preset,
                variant=variant,
                load_of=load_of,
                load=self.plan.load,
                rate_per_s=rate,
                requests=seen.sent,
                requests_per_s=seen.requests_per_s,
                idle_ms=idle_ms,
                **asdict(figures),
                requests_per_forward=shared,
                generator_cpu_share=seen.generator_cpu_s / seen.seconds,
            )
        )

    def _counters(self, variant: str, port: int) -> PackedCounters | None:
        return None if variant == STOCK else packed_counters(port)

    def _compare(self, variant: str, requests: str, answers: Mapping[int, bytes]) -> None:
        self.gate.hold(variant, f"{self.preset}, {variant}", requests, answers)

    def _mix(self, count: int) -> Mix:
        return draw_mix(self.plan.lengths, self._vocabulary, count, self.plan.seed)

    def _others(self, length: int, count: int) -> list[ScoreRequest]:
        """Prompts that are not in the mix."""
        return draw_requests(Shape(length, 0, 1), self._vocabulary, count, self.plan.seed + 1)


def in_order_of_arrival(seen: Measurement) -> list[float]:
    """Return latencies in ms in the order of request numbers; each request was sent once."""
    latency_s = dict(zip(seen.numbers, seen.latencies_s, strict=True))
    assert sorted(latency_s) == list(range(seen.sent)), "every request once"
    return [latency_s[number] * 1e3 for number in range(seen.sent)]


def requests_per_forward(counted: PackedCounters, sent: int) -> float:
    """Mean number of requests that shared a packed forward.

    Raises:
        LoadError: a request did not take the packed path, so that its order was stock's.
    """
    if counted.requests != sent:
        raise LoadError(f"only {counted.requests} of {sent} requests took the packed path")
    return sent / counted.forwards


def _score(request: ScoreRequest, token_logprobs: bool = False) -> bytes:
    return post_bytes("/v1/score", score_body(request, token_logprobs=token_logprobs))


def _pool(mix: Mix) -> list[bytes]:
    return [_score(request) for request in mix.requests]
