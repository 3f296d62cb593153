"""A discrete-event simulation of the scheduler under a cost model.

The scheduler is the real `PackedRuntime` with its queue, order and planner. The device is replaced
by a cost model with a simulated clock, and the prefix cache by a simulated one. Requests are single
prompts with Poisson arrivals. A *load* of 1 is what the device can just serve if every request has
a forward of its own and nothing is cached; shared forwards and cached prefixes can serve more.

A request's *slowdown* is its latency over the time that it takes alone on an idle device with
nothing cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.simulation.cache import SimulatedCache
from bench.simulation.traffic import LENGTHS, CostModel, Traffic
from bench.simulation.variants import Variant
from sglang_prefill_ext.config import Order
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from sglang_prefill_ext.wire.arrays import Float32Array
from sglang_prefill_ext.wire.status import Status

WARM_UP = 0.1  # share of the requests that is left out of the figures


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one variant on the traffic.

    Attributes:
        shared: see `Traffic`.
        mean_slowdown: of all requests.
        class_slowdown: mean slowdown of each length.
        longest_p99_ms: P99 latency of the longest prompts.
        requests_per_forward: mean.
        cached_share: share of the prompts' tokens that came from the cache.
        bound_violations: number of requests that waited longer than `order` promises; None if it
            promises nothing.
    """

    variant: str
    load: float
    shared: float
    mean_slowdown: float
    class_slowdown: dict[int, float]
    longest_p99_ms: float
    requests_per_forward: float
    cached_share: float
    bound_violations: int | None


class SimulatedDevice:
    """An executor that computes nothing but moves its clock."""

    asynchronous = False
    causal = True

    def __init__(self, cost: CostModel) -> None:
        self.now_ms = 0.0
        self.processed_tokens = 0
        self.forward_tokens: list[int] = []
        self._cost = cost

    def launch(self, plan: ForwardPlan) -> SimulatedForward:
        self.now_ms += self._cost.forward_ms(plan.num_tokens, plan.num_rows)
        self.processed_tokens += plan.num_tokens
        self.forward_tokens.append(plan.num_tokens)
        return SimulatedForward(plan)


class SimulatedForward:
    """Answers zeros."""

    def __init__(self, plan: ForwardPlan) -> None:
        self._num_values = plan.reads.num_values

    def done(self) -> bool:
        return True

    def wait(self) -> Float32Array:
        return np.zeros(self._num_values, dtype=np.float32)


def simulate(variant: Variant, traffic: Traffic, cost: CostModel) -> Outcome:
    """Serve the traffic to its end, from an empty cache."""
    device = SimulatedDevice(cost)
    end_ms = np.zeros(len(traffic.lengths))
    waited_tokens, needed_tokens = np.zeros((2, len(traffic.lengths)), dtype=np.int64)

    def answer(ended: Sequence[Ended]) -> None:
        started = device.processed_tokens - device.forward_tokens[-1]
        for job, result in ended:
            assert result.status is Status.OK, result.message
            end_ms[job.number] = device.now_ms
            waited_tokens[job.number] = started - job.mark
            needed_tokens[job.number] = job.rows.num_prompt_tokens - job.cached_tokens

    policy = variant.policy(lambda: device.processed_tokens, cost.launch_tokens)
    runtime = PackedRuntime(device, answer, policy, cache=SimulatedCache())
    longest_queue = _serve(runtime, device, traffic)
    bound = _bound(variant, needed_tokens, longest_queue + max(device.forward_tokens))
    latency_ms = end_ms - traffic.arrival_ms
    slowdown = latency_ms / cost.forward_ms(traffic.lengths)
    counted = np.arange(len(slowdown)) >= WARM_UP * len(slowdown)
    of_class = [counted & (traffic.length_class == number) for number in range(len(LENGTHS))]
    cached = runtime.stats.tokens_cached
    return Outcome(
        variant=variant.name,
        load=traffic.load,
        shared=traffic.shared,
        mean_slowdown=float(slowdown[counted].mean()),
        class_slowdown={
            length: float(slowdown[chosen].mean())
            for length, chosen in zip(LENGTHS, of_class, strict=True)
        },
        longest_p99_ms=float(np.percentile(latency_ms[of_class[-1]], 99)),
        requests_per_forward=len(slowdown) / len(device.forward_tokens),
        cached_share=cached / (cached + device.processed_tokens),
        bound_violations=None if bound is None else int((waited_tokens >= bound).sum()),
    )


def _serve(runtime: PackedRuntime, device: SimulatedDevice, traffic: Traffic) -> int:
    """Run to the end; return the most tokens that ever waited, cached tokens included."""
    lengths, arrivals = traffic.lengths.tolist(), traffic.arrival_ms.tolist()
    number = longest_queue = 0
    while number < len(lengths) or runtime.busy:
        if not runtime.busy:
            device.now_ms = max(device.now_ms, arrivals[number])
        while number < len(lengths) and arrivals[number] <= device.now_ms:
            runtime.submit(str(number), traffic.rows(number), None, priority=-lengths[number])
            number += 1
        longest_queue = max(longest_queue, runtime.queue.load.tokens)
        runtime.step()
    return longest_queue


def _bound(variant: Variant, needed_tokens: NDArray[np.int64], besides: int) -> Any:
    """Most tokens that each request may wait for, as proved in `order`.

    Args:
        needed_tokens: tokens of each request, without those that were cached when it arrived.
        besides: tokens of the largest forward plus those of the longest queue. In the queue, cached
            tokens count too, because they may be evicted before their request is computed.
    """
    if variant.order is Order.SRPT:
        return variant.ageing * needed_tokens + besides
    return np.full(len(needed_tokens), besides) if variant.order is Order.FCFS else None
