from __future__ import annotations

from functools import partial

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.packed import PackedRows, int_array

LABELS = {"model_name": "m", "tp_rank": "0"}


def _rows() -> PackedRows:
    """Two prompts of 3 + 2 and 3 + 1 tokens."""
    return PackedRows(
        int_array([1, 2, 3, 4, 5, 6]), 3, int_array([2, 1]), int_array([7]), int_array([])
    )


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """A registry of its own, since a counter can be registered only once a process."""
    registry = CollectorRegistry()
    counter = partial(prometheus_client.Counter, registry=registry)
    monkeypatch.setattr(prometheus_client, "Counter", counter)
    return registry


def _record_one_of_each(metrics: FrontendMetrics) -> None:
    metrics.record_packed(_rows(), forwards=2, tokens_computed=6)
    metrics.record_packed(_rows(), forwards=1, tokens_computed=6)
    metrics.record_fallback("multimodal")
    metrics.record_fallback("multimodal")
    metrics.record_fallback("no_items")
    metrics.record_error("failed")


def test_nothing_is_counted_at_first() -> None:
    assert FrontendMetrics().as_dict() == {
        "requests": {},
        "fallbacks": {},
        "items": 0,
        "forwards": 0,
        "tokens_computed": 0,
        "tokens_saved": 0,
    }


def test_requests_are_counted_by_path_and_fallbacks_by_reason() -> None:
    metrics = FrontendMetrics()
    _record_one_of_each(metrics)
    assert metrics.as_dict() == {
        "requests": {"packed": 2, "stock": 3, "failed": 1},
        "fallbacks": {"multimodal": 2, "no_items": 1},
        "items": 4,
        "forwards": 3,
        "tokens_computed": 12,
        "tokens_saved": 6,
    }


def test_prometheus_shows_the_same_numbers(registry: CollectorRegistry) -> None:
    metrics = FrontendMetrics(LABELS)
    _record_one_of_each(metrics)

    def exported(name: str, **extra: str) -> float | None:
        sample = f"sglang:prefill_only_{name}_total"
        value: float | None = registry.get_sample_value(sample, LABELS | extra)
        return value

    counted = metrics.as_dict()
    for name in ("items", "forwards", "tokens_computed", "tokens_saved"):
        assert exported(name) == counted[name]
    for path, count in counted["requests"].items():
        assert exported("requests", path=path) == count
    for reason, count in counted["fallbacks"].items():
        assert exported("fallbacks", reason=reason) == count


def test_without_labels_prometheus_is_left_out(registry: CollectorRegistry) -> None:
    _record_one_of_each(FrontendMetrics())
    assert list(registry.collect()) == []
