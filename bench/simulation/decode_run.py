"""A simulation of continuous batching, to compare orders in which generations are served.

The time of an iteration depends on its sequences, their K/V, and the prompts that it computes. A
retracted sequence is computed again like a prompt. Arrivals are Poisson; prompts and outputs have
lognormal lengths. A *load* of 1 can just be served by batches as large as slots and pool allow on
average, if nothing is computed twice.

A request's *normalised latency* is its latency over its output tokens. Its *slowdown* is its
latency over the time that it takes alone on an idle device.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.simulation.decode_batch import Limits, choose_batch
from bench.simulation.decode_policies import DecodePolicy, Generation, MultiLevel, Stock
from bench.simulation.decode_traffic import DecodeCost, DecodeTraffic

WARM_UP = 0.1  # share of the requests that is left out of the figures


@dataclass(frozen=True, slots=True)
class Regime:
    """What is scarce.

    Attributes:
        limits: limits of the server.
        sized_for: limits by which the load is defined: under these, the traffic of load 1 can just
            be served.
    """

    name: str
    limits: Limits
    sized_for: Limits


SLOTS = Limits(max_running=16, pool_tokens=1 << 20)
POOL = Limits(max_running=256, pool_tokens=1 << 14)
REGIMES = (
    Regime("batch slots", SLOTS, SLOTS),
    Regime("K/V pool", POOL, POOL),
    # The same requests as in the first regime, where slots are not scarce.
    Regime("nothing", Limits(POOL.max_running, SLOTS.pool_tokens), SLOTS),
)


@dataclass(frozen=True, slots=True)
class DecodeVariant:
    """A policy, and whether sequences that it preempts keep their K/V."""

    name: str
    policy: Callable[[], DecodePolicy]
    keep: bool


STOCK = DecodeVariant("stock", Stock, keep=True)
VARIANTS = (
    STOCK,
    DecodeVariant("mlfq, K/V kept", MultiLevel, keep=True),
    DecodeVariant("mlfq, K/V freed", MultiLevel, keep=False),
)


class DecodeServer:
    """Continuous batching under the cost model, on a simulated clock.

    Attributes:
        now_ms: end of the last iteration.
        iterations, tokens, prefill_tokens: totals; `prefill_tokens` includes tokens that were
            computed again.
        unfinished: sequences that have arrived and are not done.
    """

    def __init__(self, variant: DecodeVariant, limits: Limits, cost: DecodeCost) -> None:
        self.now_ms = 0.0
        self.iterations = self.tokens = self.prefill_tokens = self.unfinished = 0
        self._policy = variant.policy()
        self._keep = variant.keep
        self._limits = limits
        self._cost = cost

    def submit(self, each: Generation) -> None:
        self._policy.add(each)
        self.unfinished += 1

    def step(self, output_tokens: Sequence[int]) -> list[Generation]:
        """Run one iteration.

        Args:
            output_tokens: output length of each sequence, by its number; hidden from the policy.

        Returns:
            The sequences that have got a token.
        """
        choice = choose_batch(self._policy.order(), self._limits, keep=self._keep)
        for each in choice.retracted:
            each.resident = False
            self._policy.retracted(each)
        batch = choice.batch
        prefill_tokens = sum(each.tokens for each in batch if not each.resident)
        for each in batch:
            each.resident = True
            each.generated += 1
        kv_tokens = sum(each.tokens for each in batch)
        self.now_ms += self._cost.iteration_ms(len(batch), kv_tokens, prefill_tokens)
        self.iterations += 1
        self.tokens += len(batch)
        self.prefill_tokens += prefill_tokens
        self._policy.served(batch)
        for each in batch:
            if each.generated == output_tokens[each.number]:
                each.resident = False
                self._policy.remove(each)
                self.unfinished -= 1
        return batch


@dataclass(frozen=True, slots=True)
class DecodeOutcome:
    """What one variant did with the traffic; times in ms.

    Attributes:
        normalised_ms, normalised_p99_ms: normalised latency, mean and 99th percentile.
        mean_slowdown: of all requests.
        first_token_ms: mean time to the first token.
        gap_p99_ms: 99th percentile of the time between two tokens of a request.
        stall_p99_ms: 99th percentile, over the requests, of the longest such time.
        tokens_per_s: generated until the last request came.
        recomputed: tokens that were computed again, per prompt token.
        mean_batch: sequences of an iteration.
    """

    variant: str
    regime: str
    load: float
    normalised_ms: float
    normalised_p99_ms: float
    mean_slowdown: float
    first_token_ms: float
    gap_p99_ms: float
    stall_p99_ms: float
    tokens_per_s: float
    recomputed: float
    mean_batch: float


def simulate_decode(
    variant: DecodeVariant, regime: Regime, traffic: DecodeTraffic, cost: DecodeCost
) -> DecodeOutcome:
    """Serve the traffic to its end."""
    server = DecodeServer(variant, regime.limits, cost)
    arrivals, outputs = traffic.arrival_ms.tolist(), traffic.output_tokens.tolist()
    first_ms, last_ms, stall_ms = np.zeros((3, len(arrivals)))
    gaps_ms = array("d")
    tokens_per_s = 0.0
    number = 0
    while number < len(arrivals) or server.unfinished:
        if not server.unfinished:
            server.now_ms = max(server.now_ms, arrivals[number])
        while number < len(arrivals) and arrivals[number] <= server.now_ms:
            server.submit(Generation(number, int(traffic.prompt_tokens[number])))
            number += 1
            tokens_per_s = server.tokens / server.now_ms * 1e3
        for each in server.step(outputs):
            if each.generated == 1:
                first_ms[each.number] = server.now_ms
            else:
                gap_ms = server.now_ms - last_ms[each.number]
                gaps_ms.append(gap_ms)
                stall_ms[each.number] = max(stall_ms[each.number], gap_ms)
            last_ms[each.number] = server.now_ms
    latency_ms = last_ms - traffic.arrival_ms
    counted = slice(int(WARM_UP * len(arrivals)), None)
    normalised_ms = (latency_ms / traffic.output_tokens)[counted]
    prompt_tokens = int(traffic.prompt_tokens.sum())
    return DecodeOutcome(
        variant=variant.name,
        regime=regime.name,
        load=traffic.load,
        normalised_ms=float(normalised_ms.mean()),
        normalised_p99_ms=float(np.percentile(normalised_ms, 99)),
        mean_slowdown=float((latency_ms / traffic.alone_ms(cost))[counted].mean()),
        first_token_ms=float((first_ms - traffic.arrival_ms)[counted].mean()),
        gap_p99_ms=float(np.percentile(gaps_ms, 99)),
        stall_p99_ms=float(np.percentile(stall_ms[counted], 99)),
        tokens_per_s=tokens_per_s,
        recomputed=server.prefill_tokens / prompt_tokens - 1,
        mean_batch=server.tokens / server.iterations,
    )
