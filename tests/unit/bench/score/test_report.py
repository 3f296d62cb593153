from __future__ import annotations

from dataclasses import replace

from bench.score.report import compare_paths, open_table
from tests.unit.bench.commands import printed
from tests.unit.bench.results import result


def test_ratio_is_the_median_and_its_range_of_neighbours() -> None:
    (each,) = compare_paths(
        [
            result("stock", items_per_s=100.0),
            result("extension", items_per_s=400.0),
            result("stock", items_per_s=200.0, repeat=1),
            result("extension", items_per_s=600.0, repeat=1),
        ]
    )
    assert each.stock.items_per_s == 150.0
    assert each.extension.items_per_s == 500.0
    assert each.ratio == 3.5
    assert (each.lowest_ratio, each.highest_ratio) == (3.0, 4.0)
    assert each.repeats == 2


def test_open_loop_is_compared_by_median_latency() -> None:
    (each,) = compare_paths(
        [
            result("stock", closed=False, p50_ms=30.0),
            result("extension", closed=False, p50_ms=10.0),
        ]
    )
    assert each.ratio == 3.0


def test_cells_are_kept_apart_and_need_both_paths() -> None:
    results = [
        result("stock"),
        result("extension", items_per_s=300.0),
        result("stock", closed=False),
        result("extension", closed=False),
        result("stock", preset="tiny"),
        result("stock", shape="50+150x50"),
        result("extension", shape="50+150x50"),
    ]
    seen = [
        (c.stock.preset, c.stock.shape, c.stock.closed, c.ratio) for c in compare_paths(results)
    ]
    assert seen == [
        ("micro", "60+2x50", True, 3.0),
        ("micro", "60+2x50", False, 1.0),
        ("micro", "50+150x50", True, 1.0),
    ]


def test_p99_is_shown_of_enough_answers() -> None:
    few, many = (replace(result("stock", closed=False), requests=count) for count in (299, 300))
    text = printed(open_table(compare_paths([few, replace(many, path="extension")])))
    assert "10.0 / 20.0 / -" in text
    assert "10.0 / 20.0 / 30.0" in text
