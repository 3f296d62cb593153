"""A discrete-event simulation of the scheduler under a cost model.

The scheduler is the real one, `PackedRuntime` with its queue, order and planner; only the device is
replaced, by a cost model and a clock of its own. Requests are single prompts that come at random
(Poisson). A *load* of 1 is what the device can just serve with every request in a forward of its
own; forwards that are shared serve more.

A request's *slowdown* is its latency over the time that it takes alone on an idle device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.config import Order, PrefillOnlyConfig
from sglang_prefill_ext.oneshot.admission import QueueLimits
from sglang_prefill_ext.oneshot.budget import UNLIMITED, ForwardBudget
from sglang_prefill_ext.oneshot.job import Job, JobResult, JobStatus
from sglang_prefill_ext.oneshot.planner import ForwardPlan
from sglang_prefill_ext.oneshot.policy import SchedulingPolicy
from sglang_prefill_ext.oneshot.runtime import PackedRuntime
from sglang_prefill_ext.wire.packed import Float32Array, PackedRows, int_array

LENGTHS = (128, 512, 2048, 8192)
WARM_UP = 0.1  # share of the requests that is left out of the figures
DEFAULTS = PrefillOnlyConfig()


@dataclass(frozen=True, slots=True)
class CostModel:
    """Milliseconds of one forward. The defaults are a guess at a small model on a large GPU."""

    launch_ms: float = 6.0
    ms_per_token: float = 0.0025
    ms_per_row: float = 0.0

    def forward_ms(self, tokens: Any, rows: Any = 1) -> Any:
        """Time of a forward, or of many, given as arrays."""
        return self.launch_ms + self.ms_per_token * tokens + self.ms_per_row * rows


@dataclass(frozen=True, slots=True)
class Variant:
    """A way of scheduling."""

    name: str
    order: Order
    ageing: int = DEFAULTS.ageing
    launch_tokens: int = DEFAULTS.launch_tokens

    @property
    def policy(self) -> SchedulingPolicy:
        """Nothing is rejected."""
        return SchedulingPolicy(
            ForwardBudget(DEFAULTS.max_forward_tokens),
            self.order,
            self.ageing,
            self.launch_tokens,
            QueueLimits(UNLIMITED, UNLIMITED, UNLIMITED),
        )


ALONE = Variant("fcfs, one a forward", Order.FCFS, launch_tokens=0)
SHARED = Variant("fcfs", Order.FCFS)
VARIANTS = (
    ALONE,
    SHARED,
    *(Variant(f"srpt, ageing {w}", Order.SRPT, ageing=w) for w in (1, 2, 5, 20)),
    Variant("priority, short first", Order.PRIORITY),
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests in order of arrival: arrival times in ms, and each one's place in `LENGTHS`."""

    load: float
    arrival_ms: NDArray[np.float64]
    length_class: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every request."""
        return np.array(LENGTHS).take(self.length_class)


def draw_traffic(load: float, requests: int, cost: CostModel, seed: int) -> Traffic:
    """Draw Poisson arrivals; every length is equally frequent."""
    rng = np.random.default_rng(seed)
    mean_gap_ms = cost.forward_ms(np.array(LENGTHS)).mean() / load
    arrivals = np.cumsum(rng.exponential(mean_gap_ms, requests))
    return Traffic(load, arrivals, rng.integers(0, len(LENGTHS), requests))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one variant did with the traffic.

    Attributes:
        mean_slowdown: of all requests.
        class_slowdown: mean, by length.
        longest_p99_ms: latency of the longest class.
        requests_per_forward: mean.
        bound_violations: requests that waited longer than `order` promises; None where it
            promises nothing.
    """

    variant: str
    load: float
    mean_slowdown: float
    class_slowdown: dict[int, float]
    longest_p99_ms: float
    requests_per_forward: float
    bound_violations: int | None


class SimulatedDevice:
    """An executor that computes nothing but moves its clock."""

    asynchronous = False

    def __init__(self, cost: CostModel) -> None:
        self.now_ms = 0.0
        self.forward_tokens: list[int] = []
        self._cost = cost

    def launch(
        self, plan: ForwardPlan, held: Sequence[Any], stores: Sequence[Any]
    ) -> SimulatedForward:
        self.now_ms += self._cost.forward_ms(plan.num_tokens, plan.num_rows)
        self.forward_tokens.append(plan.num_tokens)
        return SimulatedForward(plan)


class SimulatedForward:
    """Answers zeros."""

    def __init__(self, plan: ForwardPlan) -> None:
        self.held = [None] * len(plan.hold)
        self._num_values = len(plan.label_ids)

    def wait(self) -> Float32Array:
        return np.zeros(self._num_values, dtype=np.float32)


def simulate(variant: Variant, traffic: Traffic, cost: CostModel) -> Outcome:
    """Serve the traffic to its end."""
    device = SimulatedDevice(cost)
    end_ms = np.zeros(len(traffic.lengths))
    waited_tokens = np.zeros(len(traffic.lengths), dtype=np.int64)

    def answer(job: Job, result: JobResult) -> None:
        assert result.status is JobStatus.OK, result.message
        end_ms[job.number] = device.now_ms
        started = runtime.stats.tokens_computed - device.forward_tokens[-1]
        waited_tokens[job.number] = started - job.mark

    runtime = PackedRuntime(device, answer, variant.policy)
    longest_queue = _serve(runtime, device, traffic)
    bound = _bound(variant, traffic, longest_queue + max(device.forward_tokens))
    latency_ms = end_ms - traffic.arrival_ms
    slowdown = latency_ms / cost.forward_ms(traffic.lengths)
    counted = np.arange(len(slowdown)) >= WARM_UP * len(slowdown)
    of_class = [counted & (traffic.length_class == number) for number in range(len(LENGTHS))]
    return Outcome(
        variant=variant.name,
        load=traffic.load,
        mean_slowdown=float(slowdown[counted].mean()),
        class_slowdown={
            length: float(slowdown[chosen].mean())
            for length, chosen in zip(LENGTHS, of_class, strict=True)
        },
        longest_p99_ms=float(np.percentile(latency_ms[of_class[-1]], 99)),
        requests_per_forward=len(slowdown) / len(device.forward_tokens),
        bound_violations=None if bound is None else int((waited_tokens >= bound).sum()),
    )


def _serve(runtime: PackedRuntime, device: SimulatedDevice, traffic: Traffic) -> int:
    """Run to the end; return the most tokens that ever waited."""
    tokens, nothing = np.zeros(max(LENGTHS), dtype=np.int32), int_array([])
    lengths, arrivals = traffic.lengths.tolist(), traffic.arrival_ms.tolist()
    number = longest_queue = 0
    while number < len(lengths) or runtime.busy:
        if not runtime.busy:
            device.now_ms = max(device.now_ms, arrivals[number])
        while number < len(lengths) and arrivals[number] <= device.now_ms:
            length = lengths[number]
            rows = PackedRows(tokens[:length], 0, int_array([length]), int_array([1]), nothing)
            runtime.submit(str(number), rows, None, priority=-length)
            number += 1
        longest_queue = max(longest_queue, runtime.waiting_load.tokens)
        runtime.step()
    return longest_queue


def _bound(variant: Variant, traffic: Traffic, besides: int) -> Any:
    """Most tokens that each request may wait for, as proved in `order`."""
    if variant.order is Order.SRPT:
        return variant.ageing * traffic.lengths + besides
    return np.full(len(traffic.lengths), besides) if variant.order is Order.FCFS else None
