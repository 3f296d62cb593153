"""SGLang's metrics collectors, with real Prometheus metrics in a registry of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

LABELS = {"model_name": "m", "priority": ""}
BUCKETS = (1, 2, 5, 100)
_WHOLE = (*LABELS, "is_streaming")
_COUNTERS = {
    "num_requests_total": _WHOLE,
    "num_aborted_requests_total": tuple(LABELS),
    "prompt_tokens_total": _WHOLE,
    "generation_tokens_total": _WHOLE,
    "cached_tokens_total": (*LABELS, "cache_source"),
}
_HISTOGRAMS = {
    "prompt_tokens_histogram": tuple(LABELS),
    "uncached_prompt_tokens_histogram": tuple(LABELS),
    "generation_tokens_histogram": tuple(LABELS),
    "histogram_e2e_request_latency": _WHOLE,
    "histogram_time_to_first_token": _WHOLE,
}


def collector(registry: CollectorRegistry, *, injected: bool = False) -> Any:
    """A front end's collector.

    Args:
        injected: its metrics are not Prometheus's, and only have `observe`.
    """
    counters = {
        name: Counter(name, name, labels, registry=registry) for name, labels in _COUNTERS.items()
    }
    histograms = {
        name: Histogram(name, name, labels, registry=registry, buckets=BUCKETS)
        for name, labels in _HISTOGRAMS.items()
    }
    injections = {"_histogram_cls": object if injected else None}
    return SimpleNamespace(labels=LABELS, **injections, **counters, **histograms)


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """The counts, by name and by the value of the distinguishing label, if any."""
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            rest = {k: v for k, v in sample.labels.items() if k not in (*LABELS, "is_streaming")}
            if not sample.name.endswith("_created") and sample.value:
                found[":".join([sample.name, *rest.values()])] = sample.value
    return found
