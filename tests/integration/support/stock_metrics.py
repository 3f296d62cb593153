"""Reads SGLang's own counts of requests from its `/metrics`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.support.client import Client

Sample: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]

_WHOLE = (
    *("num_requests_total", "prompt_tokens_total", "generation_tokens_total"),
    *("cached_tokens_total", "num_aborted_requests_total"),
    *("prompt_tokens_histogram_sum", "prompt_tokens_histogram_count"),
    *("prompt_tokens_histogram_bucket", "uncached_prompt_tokens_histogram_sum"),
    *("uncached_prompt_tokens_histogram_count", "uncached_prompt_tokens_histogram_bucket"),
    *("generation_tokens_histogram_sum", "generation_tokens_histogram_count"),
    *("generation_tokens_histogram_bucket", "e2e_request_latency_seconds_count"),
    *("time_to_first_token_seconds_count",),
)
"""Metrics to which the same prompts add the same, on either path, and at any speed."""


def scraped(client: Client, names: Collection[str]) -> dict[Sample, float]:
    """The samples of some names, without those that are 0."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(client.http.get("/metrics").text)
        for sample in family.samples
        if sample.name in names and sample.value
    }


def counts(client: Client) -> dict[Sample, float]:
    """The samples that count requests."""
    return scraped(client, {f"sglang:{name}" for name in _WHOLE})


@contextmanager
def growth(client: Client) -> Iterator[dict[Sample, float]]:
    """Fill the yielded dictionary, on leaving, with what was added meanwhile."""
    grown: dict[Sample, float] = {}
    before = counts(client)
    yield grown
    after = counts(client)
    differences = {sample: value - before.get(sample, 0) for sample, value in after.items()}
    grown.update({sample: more for sample, more in differences.items() if more})
