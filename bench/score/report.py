"""Tables of results: stock and extension side by side, the ratio first."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rich.table import Table

from bench.drawing import new_table
from bench.record import Result

_SOLID_RATIO = 1.0
_WHOLE_MS = 100.0
_P99_ANSWERS = 300  # P99 of fewer is about the latency of the slowest one
_FIGURES = ("requests_per_s", "items_per_s", "p50_ms", "p90_ms", "p99_ms", "packed_share")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Stock and extension under the same load.

    Attributes:
        stock, extension: one result of each, with medians over all repeats.
        repeats: measurements per path.
        ratio: how many times better the extension is: the median over pairs of neighbouring
            repeats. It compares items per second in a closed loop, P50 latency in an open one.
        lowest_ratio, highest_ratio: range over the same pairs.
    """

    stock: Result
    extension: Result
    repeats: int
    ratio: float
    lowest_ratio: float
    highest_ratio: float


def compare_paths(results: Iterable[Result]) -> list[Comparison]:
    """Pair the results of both paths; loads that were measured on only one path are left out."""
    cells: dict[tuple[str, str, str], dict[str, list[Result]]] = {}
    for result in results:
        cell = cells.setdefault((result.preset, result.shape, result.load), {})
        cell.setdefault(result.path, []).append(result)
    return [
        _comparison(cell["stock"], cell["extension"])
        for cell in cells.values()
        if "stock" in cell and "extension" in cell
    ]


def closed_table(comparisons: Iterable[Comparison]) -> Table:
    """Throughput under a fixed number of clients."""
    table = _table("Closed loop: items per second", "ratio", "stock", "extension", "P50 ms")
    for each in comparisons:
        if each.stock.closed:
            table.add_row(
                *_common_cells(each),
                f"{each.stock.items_per_s:,.0f}",
                f"{each.extension.items_per_s:,.0f}",
                f"{_milliseconds(each.stock.p50_ms)} → {_milliseconds(each.extension.p50_ms)}",
            )
    return table


def open_table(comparisons: Iterable[Comparison]) -> Table:
    """Latency under Poisson arrivals, from the scheduled arrival; no P99 of too few answers."""
    table = _table(
        "Open loop: ms from the scheduled arrival, P50 / P90 / P99",
        *("P50 ratio", "req/s", "stock", "extension"),
    )
    for each in comparisons:
        if not each.stock.closed:
            table.add_row(
                *_common_cells(each),
                f"{each.extension.requests_per_s:.1f}",
                _latencies(each.stock),
                _latencies(each.extension),
            )
    return table


def _table(title: str, ratio: str, *numbers: str) -> Table:
    words = ("model", "shape", "load")
    return new_table(title, ratio, *words, "range", "packed", "ops", *numbers, left=words)


def _common_cells(each: Comparison) -> tuple[str, ...]:
    style = "green" if each.lowest_ratio > _SOLID_RATIO else "yellow"
    return (
        f"[{style}]{each.ratio:.2f}×[/]",
        each.stock.preset,
        each.stock.shape,
        each.stock.load,
        f"{each.lowest_ratio:.2f}–{each.highest_ratio:.2f}" if each.repeats > 1 else "once",
        f"{each.extension.packed_share:.0%}",
        f"{each.stock.operation_ratio:.1f}×",
    )


def _latencies(side: Result) -> str:
    p99 = _milliseconds(side.p99_ms) if side.requests >= _P99_ANSWERS else "-"
    return f"{_milliseconds(side.p50_ms)} / {_milliseconds(side.p90_ms)} / {p99}"


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= _WHOLE_MS else f"{value:.1f}"


def _comparison(stock: list[Result], extension: list[Result]) -> Comparison:
    ratios = [_ratio(*pair) for pair in zip(stock, extension, strict=False)]
    return Comparison(
        stock=_median(stock),
        extension=_median(extension),
        repeats=len(ratios),
        ratio=statistics.median(ratios),
        lowest_ratio=min(ratios),
        highest_ratio=max(ratios),
    )


def _ratio(stock: Result, extension: Result) -> float:
    if stock.closed:
        return extension.items_per_s / stock.items_per_s
    return stock.p50_ms / extension.p50_ms


def _median(results: list[Result]) -> Result:
    figures = {name: [getattr(each, name) for each in results] for name in _FIGURES}
    medians = {name: statistics.median(values) for name, values in figures.items()}
    return replace(results[0], **medians)
