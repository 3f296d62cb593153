"""Counts packed prompts in SGLang's own metrics.

Every prompt counts as the request that SGLang would have made of it, under the same names and
labels. The prompts of a call are counted together, so a hundred of them take as long as one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.frontend.answers import Served


class _Histogram:
    """A Prometheus histogram; adds once to each bucket, as SGLang does for latencies of tokens."""

    def __init__(self, histogram: Any) -> None:
        self._histogram = histogram
        self._bounds = np.array(histogram._upper_bounds)

    def observe(self, values: NDArray[Any]) -> None:
        buckets = np.bincount(self._bounds.searchsorted(values))
        for number in np.flatnonzero(buckets).tolist():
            self._histogram._buckets[number].inc(int(buckets[number]))
        self._histogram._sum.inc(float(values.sum()))


class _InjectedHistogram:
    """A histogram of another library, of which only `observe` is known."""

    def __init__(self, histogram: Any) -> None:
        self._histogram = histogram

    def observe(self, values: NDArray[Any]) -> None:
        for value in values.tolist():
            self._histogram.observe(value)


class RequestCounters:
    """Counts requests with the collector of a front end.

    Args:
        collector: SGLang's; if it uses another library than Prometheus, prompts are observed one by
            one.
        first_tokens: whether SGLang observes the time to the first token of a request.
        priority: of the requests, which is one of their labels; None if there is none.
    """

    def __init__(self, collector: Any, *, first_tokens: bool, priority: int | None = None) -> None:
        labels = collector.labels
        self._aborted = collector.num_aborted_requests_total.labels(**labels)
        if priority is not None:
            labels = labels | {"priority": str(priority)}
        whole = labels | {"is_streaming": "false"}
        histogram = _Histogram if collector._histogram_cls is None else _InjectedHistogram
        self._requests = collector.num_requests_total.labels(**whole)
        self._prompt_tokens = collector.prompt_tokens_total.labels(**whole)
        self._new_tokens = collector.generation_tokens_total.labels(**whole)
        self._cached = collector.cached_tokens_total.labels(**labels, cache_source="device")
        self._prompt_lengths = histogram(collector.prompt_tokens_histogram.labels(**labels))
        computed = collector.uncached_prompt_tokens_histogram.labels(**labels)
        self._computed_lengths = histogram(computed)
        self._new_lengths = histogram(collector.generation_tokens_histogram.labels(**labels))
        self._latencies = [histogram(collector.histogram_e2e_request_latency.labels(**whole))]
        if first_tokens:
            first_token = collector.histogram_time_to_first_token.labels(**whole)
            self._latencies.append(histogram(first_token))

    def record(self, served: Served, seconds: float) -> None:
        """Count a call.

        Args:
            seconds: from its arrival to its answer, the same for all of its prompts.
        """
        prompts, lens, cached = served.num_prompts, served.prompt_tokens, served.cached_tokens
        self._requests.inc(prompts)
        self._prompt_tokens.inc(int(lens.sum()))
        self._new_tokens.inc(prompts * served.new_tokens)
        self._cached.inc(int(cached.sum()))
        self._prompt_lengths.observe(lens)
        self._computed_lengths.observe(lens - cached)
        self._new_lengths.observe(np.full(prompts, served.new_tokens))
        for latencies in self._latencies:
            latencies.observe(np.full(prompts, seconds))

    def record_aborted(self, prompts: int) -> None:
        """Count a call whose client left, or that an operator aborted."""
        self._aborted.inc(prompts)
