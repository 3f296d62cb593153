"""Prompts that are counted together are counted as if one by one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from sglang_prefill_ext.border.tokenizer_manager.stock_counters import (
    RequestCounters,
    TokenCounters,
)
from sglang_prefill_ext.frontend.call_stats import Served
from tests.unit.border.collectors import collector, samples

_PROMPTS = st.lists(
    st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1
)


def served(prompts: list[tuple[int, int]], new_tokens: int = 0) -> Served:
    lens, cached = np.array(prompts, dtype=np.int32).T
    return Served(lens, cached, new_tokens)


@given(_PROMPTS, st.integers(0, 1), st.floats(0, 200, allow_subnormal=False))
def test_together_is_one_by_one(
    prompts: list[tuple[int, int]], new_tokens: int, seconds: float
) -> None:
    together, one_by_one = CollectorRegistry(), CollectorRegistry()
    counters = RequestCounters(collector(together), first_tokens=True)
    counters.record(served(prompts, new_tokens), seconds)
    counters = RequestCounters(collector(one_by_one, injected=True), first_tokens=True)
    counters.record(served(prompts, new_tokens), seconds)
    found, wanted = samples(together), samples(one_by_one)
    assert found.keys() == wanted.keys()
    np.testing.assert_allclose(list(found.values()), list(wanted.values()), rtol=1e-12)


def test_every_prompt_is_a_request() -> None:
    registry = CollectorRegistry()
    counters = RequestCounters(collector(registry), first_tokens=False)
    counters.record(served([(3, 0), (7, 2)], new_tokens=1), 1.5)
    counters.record_aborted(4)
    assert samples(registry) == {
        "num_requests_total": 2,
        "num_aborted_requests_total": 4,
        "prompt_tokens_total": 10,
        "generation_tokens_total": 2,
        "cached_tokens_total:device": 2,
        "prompt_tokens_histogram_count": 2,
        "prompt_tokens_histogram_sum": 10,
        "prompt_tokens_histogram_bucket:5.0": 1,
        "prompt_tokens_histogram_bucket:100.0": 2,
        "prompt_tokens_histogram_bucket:+Inf": 2,
        "uncached_prompt_tokens_histogram_count": 2,
        "uncached_prompt_tokens_histogram_sum": 8,
        "uncached_prompt_tokens_histogram_bucket:5.0": 2,
        "uncached_prompt_tokens_histogram_bucket:100.0": 2,
        "uncached_prompt_tokens_histogram_bucket:+Inf": 2,
        "generation_tokens_histogram_count": 2,
        "generation_tokens_histogram_sum": 2,
        **{f"generation_tokens_histogram_bucket:{each}": 2 for each in (1.0, 2.0, 5.0, 100.0)},
        "generation_tokens_histogram_bucket:+Inf": 2,
        "histogram_e2e_request_latency_count": 2,
        "histogram_e2e_request_latency_sum": 3.0,
        **{f"histogram_e2e_request_latency_bucket:{each}": 2 for each in (2.0, 5.0, 100.0)},
        "histogram_e2e_request_latency_bucket:+Inf": 2,
    }


def test_of_totals_the_growth_is_counted() -> None:
    calls: list[tuple[str, tuple[object, ...]]] = []
    scheduler = SimpleNamespace(
        increment_realtime_tokens=lambda *args: calls.append(("realtime", args)),
        increment_effective_prefill_tokens=lambda *args: calls.append(("effective", args)),
    )
    counters = TokenCounters(scheduler)
    counters.update(10, 0)
    counters.update(13, 7)
    assert calls == [
        ("realtime", (None, 10, 0)),
        ("effective", (10, 0, 0, 0)),
        ("realtime", (None, 3, 7)),
        ("effective", (3, 7, 0, 0)),
    ]
