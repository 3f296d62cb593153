"""Predicts latency and throughput of every way to divide a model over devices. Pure.

The router's planner divides requests over replicas here, too. The time of front ends, router and
network is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.fleet.planning.cost import RowCosts, Speed
from sglang_prefill_ext.fleet.planning.planner import ReplicaState, allowed_extra_work, plan
from sglang_prefill_ext.sizing.device import Device
from sglang_prefill_ext.sizing.forward import (
    MAX_FORWARD_TOKENS,
    ForwardTime,
    Serving,
    forwards_of,
    graph_tokens,
)
from sglang_prefill_ext.sizing.shape import Shape

MEMORY_FOR_WEIGHTS = 0.8
"""Largest share of a device's memory for weights; an estimate. The rest is for K/V, temporary
tensors and CUDA."""

_ONE_TOKEN = Shape(1, 0, 1)
_LEAST_TOKEN_S = 1e-12


@dataclass(frozen=True, slots=True)
class Parallelism:
    """A number of replicas, and of tensor-parallel ranks of each; written ``4 x TP1``."""

    replicas: int
    ranks: int

    def __str__(self) -> str:
        return f"{self.replicas} x TP{self.ranks}"


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: by clients that wait for each answer, or at a rate.

    Attributes:
        clients: number of requests under way at any time; ignored if there is a rate.
        rate: requests a second, which come at random times.

    Raises:
        ConfigError: a number is too small.
    """

    clients: int = 1
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ConfigError(f"--clients {self.clients}: give 1 or more.")
        if self.rate is not None and not self.rate > 0:
            raise ConfigError(f"--rate {self.rate:g}: give a number of requests a second above 0.")


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one parallelism is expected to do; seconds.

    Attributes:
        weights_gb: on each device, in 10^9 bytes.
        why_not: why it cannot serve the model; empty if it can.
        parts: number of parts of a request that finds the fleet idle.
        longest: the part of these that ends last.
        latency_s: under the load; infinite if the load is more than it can serve.
        most_requests_per_s: throughput if enough requests wait at every replica and all stay whole.
    """

    parallelism: Parallelism
    weights_gb: float
    why_not: str
    parts: int
    longest: ForwardTime
    latency_s: float
    most_requests_per_s: float

    @property
    def idle_s(self) -> float:
        """Latency of a request that finds the fleet idle."""
        return self.longest.seconds


def forecasts(serving: Serving, devices: int, shape: Shape, load: Load) -> list[Forecast]:
    """Predict every parallelism of `devices`, the best under the load first.

    Those that cannot serve the model are last. Of equal latencies, the higher throughput is first.

    Raises:
        ConfigError: there is no device.
    """
    if devices < 1:
        raise ConfigError(f"--gpus {devices}: give 1 or more.")
    found = [
        forecast(serving, Parallelism(devices // ranks, ranks), shape, load)
        for ranks in range(1, devices + 1)
        if devices % ranks == 0
    ]
    return sorted(
        found, key=lambda each: (bool(each.why_not), each.latency_s, -each.most_requests_per_s)
    )


def forecast(serving: Serving, parallelism: Parallelism, shape: Shape, load: Load) -> Forecast:
    """Predict one parallelism."""
    weights_gb = serving.weight_bytes * serving.model.stored_weights / parallelism.ranks / 1e9
    parts, longest = _longest_part(serving, parallelism, shape, 0.0)
    most = _requests_per_s(serving, parallelism, shape, waiting=MAX_FORWARD_TOKENS)
    return Forecast(
        parallelism=parallelism,
        weights_gb=weights_gb,
        why_not=_why_not(serving, parallelism, weights_gb),
        parts=parts,
        longest=longest,
        latency_s=_latency_s(serving, parallelism, shape, load, longest.seconds, most),
        most_requests_per_s=most,
    )


def speed(serving: Serving, ranks: int, shape: Shape) -> Speed:
    """The speed that a router measures of a replica which has computed whole requests of a shape.

    The launch is the time of the smallest forward. The rest of the request's time is divided by its
    tokens and attention pairs.
    """
    model = serving.model
    launch_s = serving.forward(_ONE_TOKEN, ranks).seconds
    whole_s = serving.forward(shape, ranks).seconds
    pair = model.pair_tokens
    tokens = shape.packed_tokens + pair * shape.packed_pairs
    launches_s = forwards_of(shape.packed_tokens) * launch_s
    token_s = max(_LEAST_TOKEN_S, (whole_s - launches_s) / tokens)
    return Speed(launch_s, token_s, pair * token_s, MAX_FORWARD_TOKENS)


def _longest_part(
    serving: Serving, parallelism: Parallelism, shape: Shape, utilisation: float
) -> tuple[int, ForwardTime]:
    """Divide a request over idle replicas; return the number of parts, and the last one to end."""
    replicas = [ReplicaState(0.0, speed(serving, parallelism.ranks, shape))] * parallelism.replicas
    costs = RowCosts.of(shape.prefix_tokens, [shape.suffix_tokens] * shape.items)
    parts = plan(costs, replicas, extra_work=allowed_extra_work(utilisation))
    most_rows = max(len(part.rows) for part in parts)
    return len(parts), serving.forward(replace(shape, items=most_rows), parallelism.ranks)


def _requests_per_s(
    serving: Serving, parallelism: Parallelism, shape: Shape, waiting: int
) -> float:
    """Throughput of whole requests, of which `waiting` wait at each replica and may share forwards.

    The best of three ways: one request a forward, as many as fill a graph, and as many as fit.
    """
    ranks = parallelism.ranks
    full = (tokens // shape.packed_tokens for tokens in (graph_tokens(ranks), MAX_FORWARD_TOKENS))
    sizes = {1, *(max(1, min(each, waiting)) for each in full)}
    return parallelism.replicas * max(
        size / serving.forward(shape, ranks, size).seconds for size in sizes
    )


def _latency_s(
    serving: Serving, parallelism: Parallelism, shape: Shape, load: Load, idle_s: float, most: float
) -> float:
    """Latency under a load; infinite if the load is more than the fleet can serve.

    For clients that wait, the larger of two lower bounds: the latency of an idle fleet, and the
    fleet's time for all requests under way (asymptotic bounds, Denning and Buzen, "The operational
    analysis of queueing network models", 1978). At a rate, the sum of two times: that of a request,
    divided as far as so busy a fleet allows, and the mean wait in a queue for as many servers as
    replicas with equal service times (Sakasegawa 1977; one server: Pollaczek-Khinchine).
    """
    if load.rate is None:
        waiting = load.clients // parallelism.replicas
        return max(idle_s, load.clients / _requests_per_s(serving, parallelism, shape, waiting))
    used = load.rate / most
    if used >= 1:
        return math.inf
    servers = parallelism.replicas
    service_s = servers / most
    waits = math.pow(used, math.sqrt(2 * (servers + 1)) - 1) / (servers * (1 - used)) / 2
    divided_s = _longest_part(serving, parallelism, shape, used)[1].seconds
    return divided_s + waits * service_s


def _why_not(serving: Serving, parallelism: Parallelism, weights_gb: float) -> str:
    model, ranks = serving.model, parallelism.ranks
    for mixer in model.mixers:
        heads, kv_heads = mixer.head_counts
        if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
            return f"{heads} heads, {kv_heads} of K/V, cannot be divided by {ranks}"
    return no_room(serving.device, weights_gb)


def no_room(device: Device, weights_gb: float) -> str:
    """Say why a device has no room for its weights; empty if it has."""
    most_gb = MEMORY_FOR_WEIGHTS * device.memory_gb
    if weights_gb > most_gb:
        return f"weights take {weights_gb:.1f} GB of each device, which has room for {most_gb:.1f}"
    return ""
