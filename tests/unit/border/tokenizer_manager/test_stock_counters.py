"""Counting prompts together gives the same counts as counting them one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from sglang_prefill_ext.border.tokenizer_manager.stock_counters import RequestCounters
from sglang_prefill_ext.frontend.answers import Served
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


def test_prompts_have_the_default_priority_of_the_server() -> None:
    registry = CollectorRegistry()
    counters = RequestCounters(collector(registry), first_tokens=True, priority=3)
    counters.record(served([(5, 2)], new_tokens=1), 0.5)
    counters.record_aborted(1)
    found = {
        family.name: {sample.labels["priority"] for sample in family.samples if sample.value}
        for family in registry.collect()
    }
    assert found.pop("num_aborted_requests") == {""}  # SGLang looks at no request there
    assert list(found.values()) == [{"3"}] * 9
