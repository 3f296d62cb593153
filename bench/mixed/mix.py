"""The plan, single prompts of mixed lengths, and how much each is slowed down by the others (pure).

A request's *slowdown* is its latency over the latency of a prompt of its length on the same server
while that is idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.score.plan import STOCK
from bench.workloads import ScoreRequest, Shape, draw_requests
from sglang_prefill_ext.errors import ConfigError

WARM_UP = 0.1  # share of the requests that is left out of the figures

ALONE, FCFS, SRPT = "fcfs, one a forward", "fcfs", "srpt"
VARIANTS = {
    STOCK: (),
    ALONE: ("--prefill-only-order", "fcfs", "--prefill-only-launch-tokens", "1"),
    FCFS: ("--prefill-only-order", "fcfs"),
    SRPT: ("--prefill-only-order", "srpt"),
}
"""Variant of a server -> its flags. If a launch costs 1 token, only requests in a long queue
share a forward."""

SATURATED_BY = {STOCK: "stock", ALONE: "extension"}
"""Variant whose rate in a closed loop is a load of 1 -> name of that load."""


@dataclass(frozen=True, slots=True)
class MixPlan:
    """What to run.

    Attributes:
        lengths: of prompts, in tokens, ascending; all are equally frequent.
        seconds: least length of an open loop.
        saturation_seconds: least length of the closed loop that finds the rate of load 1.
        load: share of the saturation rate that is offered.
        clients: of the closed loop that finds the rate.
        dtype: of the model in all servers; decides the gate's tolerance.
        extension_args: flags of every variant of the extension, before the variant's own.
        seed: of prompts and arrivals.
    """

    lengths: tuple[int, ...]
    seconds: float
    saturation_seconds: float
    load: float = 0.95
    clients: int = 16
    dtype: str = "float32"
    extension_args: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests in order of arrival.

    Attributes:
        lengths: of prompts, in tokens, ascending.
        length_class: each request's place in `lengths`; int64 ``[requests]``.
        requests: the prompts, all different.
    """

    lengths: tuple[int, ...]
    length_class: NDArray[np.int64]
    requests: list[ScoreRequest]


def draw_mix(lengths: Sequence[int], vocabulary: int, count: int, seed: int) -> Mix:
    """Draw `count` prompts, every length equally likely.

    With the same other arguments, a smaller `count` gives the first requests of a larger one.

    Raises:
        ConfigError: `lengths` are empty, not ascending or not positive.
    """
    ascending = tuple(sorted(set(lengths)))
    if ascending != tuple(lengths) or not ascending or ascending[0] < 1:
        raise ConfigError(f"lengths {list(lengths)}: give ascending numbers of tokens from 1 on.")
    length_class = np.random.default_rng(seed).integers(0, len(lengths), count)
    of_class = [
        iter(draw_requests(Shape(length, 0, 1), vocabulary, int(frequency), seed))
        for length, frequency in zip(
            ascending, np.bincount(length_class, minlength=len(ascending)), strict=True
        )
    ]
    return Mix(ascending, length_class, [next(of_class[number]) for number in length_class])


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """Figures of the requests after the warm-up.

    Attributes:
        mean_slowdown: of all requests.
        length_slowdown: mean, by length.
        longest_p99_ms: latency of the longest prompts.
    """

    mean_slowdown: float
    length_slowdown: dict[int, float]
    longest_p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixResult(Slowdowns):
    """Figures of one variant under one load.

    Attributes:
        preset: model.
        variant: name of the server's variant, see `VARIANTS`.
        load_of: name of the variant whose saturation rate is a load of 1.
        load: share of that rate.
        rate_per_s: requests per second that were offered.
        requests: number of answers. The first `WARM_UP` of them count only here and in the rates.
        requests_per_s: answers per second.
        idle_ms: median latency on the idle server, by length.
        requests_per_forward: mean; None for stock, which does not report it.
        generator_cpu_share: of one core, used by the load generator.
    """

    preset: str
    variant: str
    load_of: str
    load: float
    rate_per_s: float
    requests: int
    requests_per_s: float
    idle_ms: dict[int, float]
    requests_per_forward: float | None
    generator_cpu_share: float


def slowdowns(mix: Mix, latency_ms: Sequence[float], idle_ms: dict[int, float]) -> Slowdowns:
    """Compute the figures of one load.

    Args:
        mix: what was sent.
        latency_ms: of every request, in the order of arrival.
        idle_ms: latency on the idle server, by length.

    Raises:
        ConfigError: too few requests, so that a length does not occur after the warm-up.
    """
    latencies = np.array(latency_ms)
    alone = np.array([idle_ms[length] for length in mix.lengths])
    slowdown = latencies / alone[mix.length_class]
    counted = np.arange(len(latencies)) >= WARM_UP * len(latencies)
    of_class = [counted & (mix.length_class == number) for number in range(len(mix.lengths))]
    if not all(chosen.any() for chosen in of_class):
        raise ConfigError("a length does not occur after the warm-up; measure more --seconds.")
    return Slowdowns(
        float(slowdown[counted].mean()),
        {
            length: float(slowdown[chosen].mean())
            for length, chosen in zip(mix.lengths, of_class, strict=True)
        },
        float(np.percentile(latencies[of_class[-1]], 99)),
    )
