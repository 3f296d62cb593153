"""Random traffic of generations, and the cost model of serving them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.simulation.decode_batch import Limits

PROMPT = (256, 1.0, 2048)  # median, sigma of the logarithm, most; tokens
OUTPUT = (128, 1.2, 4096)


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Milliseconds of an iteration. The defaults are a guess at an 8B model on a large GPU."""

    base_ms: float = 8.0
    ms_per_sequence: float = 0.02
    ms_per_kv_token: float = 4e-5
    ms_per_prefill_token: float = 0.03

    def iteration_ms(self, sequences: Any, kv_tokens: Any, prefill_tokens: Any) -> Any:
        """Time of an iteration, or of many, given as arrays."""
        return (
            self.base_ms
            + self.ms_per_sequence * sequences
            + self.ms_per_kv_token * kv_tokens
            + self.ms_per_prefill_token * prefill_tokens
        )


@dataclass(frozen=True, slots=True)
class DecodeTraffic:
    """Requests in order of arrival; arrival times in ms."""

    load: float
    arrival_ms: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]

    def alone_ms(self, cost: DecodeCost) -> NDArray[np.float64]:
        """Time of each request alone on an idle device."""
        outputs, prompts = self.output_tokens, self.prompt_tokens
        kv_tokens = outputs * prompts + outputs * (outputs + 1) / 2
        total: NDArray[np.float64] = cost.iteration_ms(outputs, kv_tokens, prompts)
        return total + cost.base_ms * (outputs - 1)


def draw_decode_traffic(
    load: float, requests: int, limits: Limits, cost: DecodeCost, seed: int
) -> DecodeTraffic:
    """Draw lengths and arrivals; the lengths depend on the seed, not on the load."""
    rng = np.random.default_rng(seed)
    prompts, outputs = (
        np.clip(rng.lognormal(np.log(median), sigma, requests), 1, most).astype(np.int64)
        for median, sigma, most in (PROMPT, OUTPUT)
    )
    mean_kv = float((outputs * (prompts + (outputs + 1) / 2)).sum() / outputs.sum())
    running = min(limits.max_running, limits.pool_tokens / mean_kv)
    prefill_tokens = running * prompts.sum() / outputs.sum()
    iteration_ms = cost.iteration_ms(running, running * mean_kv, prefill_tokens)
    mean_gap_ms = outputs.mean() * iteration_ms / running / load
    arrivals = np.cumsum(rng.exponential(mean_gap_ms, requests))
    return DecodeTraffic(load, arrivals, prompts, outputs)
