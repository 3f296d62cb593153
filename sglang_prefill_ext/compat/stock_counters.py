"""Packed prompts in SGLang's own statistics.

Every prompt counts as the request that SGLang would have made of it, under the same names and
labels. The prompts of a call are counted together, which for a hundred of them takes as long as
for one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.frontend.served import Served


class RequestCounters:
    """Counts requests with the collector of a front end.

    Args:
        collector: SGLang's; where it counts for something else than Prometheus, prompts are
            observed one by one.
        first_tokens: whether SGLang observes when the first token of a request is there.
    """

    def __init__(self, collector: Any, *, first_tokens: bool) -> None:
        labels = collector.labels
        whole = labels | {"is_streaming": "false"}
        self._one_by_one = collector._histogram_cls is not None
        self._requests = collector.num_requests_total.labels(**whole)
        self._aborted = collector.num_aborted_requests_total.labels(**labels)
        self._prompt_tokens = collector.prompt_tokens_total.labels(**whole)
        self._new_tokens = collector.generation_tokens_total.labels(**whole)
        self._cached = collector.cached_tokens_total.labels(**labels, cache_source="device")
        self._prompt_lengths = collector.prompt_tokens_histogram.labels(**labels)
        self._computed_lengths = collector.uncached_prompt_tokens_histogram.labels(**labels)
        self._new_lengths = collector.generation_tokens_histogram.labels(**labels)
        self._latencies = [collector.histogram_e2e_request_latency.labels(**whole)]
        if first_tokens:
            self._latencies.append(collector.histogram_time_to_first_token.labels(**whole))

    def record(self, served: Served, seconds: float) -> None:
        """Count a call.

        Args:
            seconds: from its arrival to its answer, which its prompts have in common.
        """
        prompts, lens, cached = served.num_prompts, served.prompt_tokens, served.cached_tokens
        self._requests.inc(prompts)
        self._prompt_tokens.inc(int(lens.sum()))
        self._new_tokens.inc(prompts * served.new_tokens)
        self._cached.inc(int(cached.sum()))
        self._observe(self._prompt_lengths, lens)
        self._observe(self._computed_lengths, lens - cached)
        self._observe(self._new_lengths, np.full(prompts, served.new_tokens))
        for latencies in self._latencies:
            self._observe(latencies, np.full(prompts, seconds))

    def record_aborted(self, prompts: int) -> None:
        """Count a call whose client left, or that an operator aborted."""
        self._aborted.inc(prompts)

    def _observe(self, histogram: Any, values: NDArray[Any]) -> None:
        """Add to each bucket once, as SGLang adds the latencies of tokens."""
        if self._one_by_one:
            for value in values.tolist():
                histogram.observe(value)
            return
        buckets = np.bincount(np.searchsorted(histogram._upper_bounds, values))
        for number in np.flatnonzero(buckets).tolist():
            histogram._buckets[number].inc(int(buckets[number]))
        histogram._sum.inc(float(values.sum()))


class TokenCounters:
    """Counts the tokens of packed forwards with the collector of a scheduler."""

    def __init__(self, collector: Any) -> None:
        self._collector = collector
        self._computed = 0
        self._cached = 0

    def update(self, computed: int, cached: int) -> None:
        """Count what was added.

        Args:
            computed: tokens that went through the model since the start.
            cached: tokens that the prefix cache had instead.
        """
        more = computed - self._computed, cached - self._cached
        self._computed, self._cached = computed, cached
        self._collector.increment_realtime_tokens(None, *more)
        self._collector.increment_effective_prefill_tokens(*more, 0, 0)
