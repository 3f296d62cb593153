"""A simulation of when forwards are launched: the real runtime drives a device that takes time.

The clock of the runtime is simulated. A launch takes the host some time, and an iteration of the
scheduler a little. A forward takes the device the time of the cost model, give or take `NOISE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from bench.simulation.run import WARM_UP
from bench.simulation.traffic import CostModel, Traffic
from bench.simulation.variants import SHARED
from sglang_prefill_ext.scheduling import forwards, job, runtime
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from sglang_prefill_ext.wire.arrays import Float32Array

NOISE = 0.3
_ITERATION_S = 5e-5

WAITS, IN_TIME = "after the forward before", "just in time"


@dataclass(frozen=True, slots=True)
class LaunchOutcome:
    """Figures of one way on the traffic.

    Attributes:
        mean_slowdown: see `run`; of all requests.
        busy: share of the time for which the device computes.
    """

    way: str
    load: float
    host_ms: float
    mean_slowdown: float
    p99_ms: float
    requests_per_forward: float
    busy: float


class _Clock:
    """Takes the place of the module `time`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class _Device:
    """An executor that computes nothing, but takes time."""

    asynchronous = True
    causal = True

    def __init__(self, clock: _Clock, cost: CostModel, host_ms: float, seed: int) -> None:
        self.busy_s = 0.0
        self._clock, self._cost, self._host_s = clock, cost, host_ms / 1e3
        self._rng = np.random.default_rng(seed)
        self._free_s = 0.0

    def launch(self, plan: ForwardPlan) -> _Forward:
        self._clock.now_s += self._host_s
        noise = self._rng.uniform(1 - NOISE, 1 + NOISE)
        busy_s = noise * self._cost.forward_ms(plan.num_tokens, plan.num_rows) / 1e3
        self._free_s = max(self._free_s, self._clock.now_s) + busy_s
        self.busy_s += busy_s
        return _Forward(self._clock, self._free_s, plan.reads.num_values)


@dataclass(frozen=True, slots=True)
class _Forward:
    """Answers zeros when it is done."""

    clock: _Clock
    end_s: float
    num_values: int

    def done(self) -> bool:
        return self.clock.now_s >= self.end_s

    def wait(self) -> Float32Array:
        self.clock.now_s = max(self.clock.now_s, self.end_s)
        return np.zeros(self.num_values, dtype=np.float32)


def simulate_launches(
    way: str, traffic: Traffic, cost: CostModel, host_ms: float, seed: int
) -> LaunchOutcome:
    """Serve the traffic to its end; requests have forwards `IN_TIME` or when a rank `WAITS`."""
    clock = _Clock()
    device = _Device(clock, cost, host_ms, seed)
    arrival_s = traffic.arrival_ms / 1e3
    end_s = np.zeros(len(arrival_s))

    def answer(ended: Sequence[Ended]) -> None:
        for each, _result in ended:
            end_s[each.number] = clock.now_s

    policy = SHARED.policy(lambda: 0, cost.launch_tokens)
    work = PackedRuntime(device, answer, policy, alone=way == IN_TIME)
    times = [patch.object(module, "time", clock) for module in (forwards, job, runtime)]
    with times[0], times[1], times[2]:
        _serve(work, clock, traffic, arrival_s.tolist())
    counted = slice(int(WARM_UP * len(end_s)), None)
    latency_ms = (end_s - arrival_s)[counted] * 1e3
    return LaunchOutcome(
        way=way,
        load=traffic.load,
        host_ms=host_ms,
        mean_slowdown=float((latency_ms / cost.forward_ms(traffic.lengths)[counted]).mean()),
        p99_ms=float(np.percentile(latency_ms, 99)),
        requests_per_forward=len(end_s) / work.stats.forwards,
        busy=device.busy_s / clock.now_s,
    )


def _serve(work: PackedRuntime, clock: _Clock, traffic: Traffic, arrivals: Sequence[float]) -> None:
    number = 0
    while number < len(arrivals) or work.busy:
        if not work.busy:
            clock.now_s = max(clock.now_s, arrivals[number])
        while number < len(arrivals) and arrivals[number] <= clock.now_s:
            work.submit(str(number), traffic.rows(number), None)
            number += 1
        clock.now_s += _ITERATION_S
        work.step(launch=not work.may_wait)
