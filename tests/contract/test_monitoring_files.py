"""Alerts and dashboard in docs/deploy are valid, and ask for metrics and labels that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from sglang.srt.observability import metrics_collector

from sglang_prefill_ext.wire.status import BAD_ENDS
from sglang_prefill_ext.wire.stock_reason import StockReason

DOCS = Path(__file__).parents[2] / "docs"
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DOCS / "deploy" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS: list[dict[str, Any]] = json.loads((DOCS / "deploy" / "dashboard.json").read_text())[
    "panels"
]
QUERIES = [
    *((rule["alert"], rule["expr"]) for rule in ALERTS),
    *((panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]),
]
VALUES = {
    "path": {"packed", "stock", *(end.counted for end in BAD_ENDS)},
    "reason": {*map(str, StockReason)},
}
OF_PROMETHEUS = {"le", "instance"}


def served() -> dict[str, set[str]]:
    """Metrics that the pages list, and those of SGLang, with the labels that are their own."""
    pages = "".join((DOCS / name).read_text() for name in ("monitoring.md", "fleet.md"))
    found = re.findall(r"`(sglang:prefill_only_\w+)(?:\{([\w, ]+)\})?`", pages)
    metrics = {name: set(labels.split(", ")) for name, labels in found}
    stock = re.findall(r'"(sglang:\w+)"', Path(metrics_collector.__file__).read_text())
    return {name: set[str]() for name in stock} | metrics


@pytest.mark.parametrize(("name", "query"), QUERIES, ids=[name for name, _ in QUERIES])
def test_queries_ask_for_what_is_served(name: str, query: str) -> None:
    promql_parser.parse(query.replace("$__rate_interval", "5m"))
    metrics, labels = served(), set(OF_PROMETHEUS)
    for metric in re.findall(r"sglang:\w+", query):
        own = metrics.get(metric, metrics.get(metric.removesuffix("_bucket")))
        assert own is not None, f"{name} asks for {metric}"
        labels |= own
    grouped = [label for by in re.findall(r"by \(([\w, ]+)\)", query) for label in by.split(", ")]
    assert {*grouped} <= labels
    for label, values in re.findall(r'(\w+)=~?"([^"]+)"', query):
        assert label in labels
        assert {*values.split("|")} <= VALUES[label]


def test_a_query_that_is_wrong_is_found() -> None:
    for wrong in ("sum(rate(up[5m])", 'sum by (path) (sglang:prefill_only_requests{path="x"})'):
        with pytest.raises((ValueError, AssertionError)):
            test_queries_ask_for_what_is_served("", wrong)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alerts_say_only_what_their_query_keeps(rule: dict[str, Any]) -> None:
    (summary,) = rule["annotations"].values()
    said = re.findall(r"\$labels\.(\w+)", summary)
    assert all(f"{label})" in rule["expr"] or f"{label}," in rule["expr"] for label in said)
    assert set(rule) <= {"alert", "expr", "for", "annotations"}
    assert sum(other["alert"] == rule["alert"] for other in ALERTS) == 1


def test_panels_have_places_of_their_own() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in PANELS]
    assert len({*places}) == len(PANELS) == len({panel["id"] for panel in PANELS})
    assert all(panel["gridPos"]["w"] == panel["gridPos"]["h"] == 8 for panel in PANELS)
    assert all(x % 8 == y % 8 == 0 and x < 24 for x, y in places)


def test_legends_name_labels_that_their_query_keeps() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), target
