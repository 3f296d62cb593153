from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from sglang_prefill_ext.metrics import FrontendMetrics, SchedulerMetrics
from sglang_prefill_ext.metrics.pauses import pause_histogram
from sglang_prefill_ext.moe.routing import LayerBalance
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.status import BAD_ENDS, Status
from sglang_prefill_ext.wire.stock_reason import StockReason

LABELS = {"model_name": "m", "tp_rank": "0"}
NOTHING = {
    "requests": {},
    "fallbacks": {},
    "items": 0,
    "forwards": 0,
    "tokens_computed": 0,
    "tokens_saved": 0,
    "text_batches": 0,
    "chats": 0,
    "spliced": 0,
    "encoding_mismatches": 0,
    "encoding_failures": 0,
}


def _rows() -> PackedRows:
    """Two prompts of 3 + 2 and 3 + 1 tokens."""
    return PackedRows(int_array([1, 2, 3, 4, 5, 6]), 3, int_array([2, 1]), Labels(int_array([7])))


def _answer(forwards: int, *, tokens_computed: int) -> PackedResult:
    return PackedResult(Status.OK, forwards=forwards, tokens_computed=tokens_computed)


def test_what_was_counted_in_one_process_can_be_added_in_another() -> None:
    far, here = FrontendMetrics(), FrontendMetrics()
    for metrics in (far, here):
        metrics.count_requests("packed")
        metrics.record_work(_rows(), _answer(1, tokens_computed=6))
    here.add(*far.take())
    assert here.as_dict() == NOTHING | {
        "requests": {"packed": 2},
        "items": 4,
        "forwards": 2,
        "tokens_computed": 12,
        "tokens_saved": 6,
    }
    assert far.as_dict() == FrontendMetrics().as_dict()
    assert far.take() == FrontendMetrics().take()


def test_totals_are_counted_one_by_one() -> None:
    metrics = FrontendMetrics()
    metrics.count("spliced")
    metrics.count("spliced")
    assert (metrics.totals["spliced"], metrics.totals["encoding_mismatches"]) == (2, 0)


def _record_one_of_each(metrics: FrontendMetrics) -> None:
    for forwards in (2, 1):
        metrics.count_requests("packed")
        metrics.record_work(_rows(), _answer(forwards, tokens_computed=6))
    metrics.record_fallback(StockReason.MULTIMODAL)
    metrics.record_fallback(StockReason.MULTIMODAL)
    metrics.record_fallback(StockReason.NO_ITEMS)
    metrics.count_requests("failed")


def test_nothing_is_counted_at_first() -> None:
    assert FrontendMetrics().as_dict() == NOTHING


def test_requests_are_counted_by_path_and_fallbacks_by_reason() -> None:
    metrics = FrontendMetrics()
    _record_one_of_each(metrics)
    assert metrics.as_dict() == NOTHING | {
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


def test_tokens_computed_twice_save_nothing_and_can_be_counted(registry: CollectorRegistry) -> None:
    metrics = FrontendMetrics(LABELS)
    metrics.record_work(_rows(), _answer(2, tokens_computed=18))
    assert metrics.totals["tokens_saved"] == 0
    assert registry.get_sample_value("sglang:prefill_only_tokens_computed_total", LABELS) == 18


def test_what_another_process_counts_neither_raises_nor_makes_labels(
    registry: CollectorRegistry,
) -> None:
    metrics = FrontendMetrics(LABELS)
    metrics.add({"packed": 2, "failed": -1, "made up": 1}, {"items": -3, "forwards": 1, "else": 1})
    assert metrics.requests == {"packed": 2, "failed": 0}
    assert (metrics.totals["items"], metrics.totals["forwards"]) == (0, 1)
    name = "sglang:prefill_only_requests_total"
    assert registry.get_sample_value(name, LABELS | {"path": "made up"}) is None


def test_every_way_in_which_a_request_is_counted_can_be_added() -> None:
    kinds = {end.counted for end in BAD_ENDS} | {"packed", "stock"}
    metrics = FrontendMetrics()
    metrics.add(dict.fromkeys(kinds, 1), {})
    assert set(metrics.requests) == kinds


def test_without_labels_prometheus_is_left_out(registry: CollectorRegistry) -> None:
    _record_one_of_each(FrontendMetrics())
    assert list(registry.collect()) == []


QUEUE = {"requests": 3, "tokens": 70, "rows": 5, "bytes": 900, "oldest_wait_s": 1.5}


def test_prometheus_shows_the_queue_as_it_is_now(registry: CollectorRegistry) -> None:
    metrics = SchedulerMetrics(LABELS)
    metrics.update(dict.fromkeys(QUEUE, 99), 2, {"graph": 4})
    metrics.update(QUEUE, 3, {"graph": 5, "too_large": 1})
    for name, value in QUEUE.items():
        assert registry.get_sample_value(f"sglang:prefill_only_queue_{name}", LABELS) == value
    retried = registry.get_sample_value("sglang:prefill_only_retried_forwards_total", LABELS)
    assert retried == 3
    for how, count in (("graph", 5), ("too_large", 1)):
        labels = LABELS | {"how": how}
        assert (
            registry.get_sample_value("sglang:prefill_only_graph_forwards_total", labels) == count
        )


def test_prometheus_shows_each_layer_of_experts_as_last_looked_at(
    registry: CollectorRegistry,
) -> None:
    metrics = SchedulerMetrics(LABELS)
    metrics.show_experts([LayerBalance(9.0, 9.0, 1.0)] * 2)
    balance = [LayerBalance(1.5, 2.25, 0.1), LayerBalance(1.25, 1.75, 0.3)]
    metrics.show_experts(balance)
    for layer, numbers in enumerate(balance):
        labels = LABELS | {"layer": str(layer)}
        for name, value in numbers._asdict().items():
            full = f"sglang:prefill_only_expert_{name}"
            assert registry.get_sample_value(full, labels) == value


def test_totals_are_exported_from_the_start(registry: CollectorRegistry) -> None:
    FrontendMetrics(LABELS)
    name = "sglang:prefill_only_encoding_mismatches_total"
    assert registry.get_sample_value(name, LABELS) == 0
    name = "sglang:prefill_only_requests_total"
    assert registry.get_sample_value(name, LABELS | {"path": "failed"}) == 0


def test_the_documented_metrics_are_those_that_are_exported(registry: CollectorRegistry) -> None:
    FrontendMetrics(LABELS)
    SchedulerMetrics(LABELS)
    pause_histogram({"model_name": "m", "role": "tokenizer"})
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
    documented = re.findall(r"`(sglang:prefill_only_\w+)", page)
    exported = {
        family.name + "_total" * (family.type == "counter") for family in registry.collect()
    }
    assert set(documented) == exported
