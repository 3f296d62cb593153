"""Tables of phases and ratios of generations beside packed load."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from bench.decode.plan import ALONE, OPEN, SATURATED, DecodeResult
from bench.drawing import new_table
from bench.score.plan import EXTENSION, PATHS, STOCK

LEAST_ALONE = 0.97
MOST_ALONE = 1.03
LEAST_BY_SHARE = 0.95
"""Aims. Alone: tokens per second and time per token, divided by stock's. Saturated: see
`pace_by_share`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A ratio, one value per start of the servers.

    Attributes:
        what: what the ratio compares.
        values: one per start, in order.
        least, most: lower or upper limit as an aim; None without such an aim.
    """

    what: str
    values: list[float]
    least: float | None = None
    most: float | None = None

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def aim(self) -> str:
        if self.least is not None:
            return f"≥ {self.least:g}"
        return "-" if self.most is None else f"≤ {self.most:g}"

    @property
    def is_met(self) -> bool | None:
        """Whether the median meets the aim; None without an aim."""
        if self.least is not None:
            return self.value >= self.least
        return None if self.most is None else self.value <= self.most


def findings(results: Sequence[DecodeResult], decode_slowdown: float) -> list[Finding]:
    """Return the ratios to report; `decode_slowdown` is the aim that the extension promises."""
    alone, opened = (_paired(results, phase) for phase in (ALONE, OPEN))
    own = [extension for _, extension in alone]
    beside = list(zip(own, _of(results, EXTENSION, SATURATED), strict=True))

    def ratios(pairs: Sequence[tuple[DecodeResult, DecodeResult]], name: str) -> list[float]:
        return [getattr(after, name) / getattr(before, name) for before, after in pairs]

    by_share = [pace_by_share(before, after) for before, after in beside]
    return [
        Finding("alone: tokens/s, of stock", ratios(alone, "tokens_per_s"), least=LEAST_ALONE),
        Finding("alone: ms/token, of stock", ratios(alone, "ms_per_token"), most=MOST_ALONE),
        Finding("alone: gap P99, of stock", ratios(alone, "gap_p99_ms")),
        Finding("open loop: tokens/s, of stock", ratios(opened, "tokens_per_s")),
        Finding("open loop: gap P99, of stock", ratios(opened, "gap_p99_ms")),
        Finding("open loop: items/s, of stock", ratios(opened, "items_per_s")),
        Finding("saturated: pace, of the share of time", by_share, least=LEAST_BY_SHARE),
        Finding("saturated: gap P99, of alone", ratios(beside, "gap_p99_ms"), most=decode_slowdown),
    ]


def pace_by_share(alone: DecodeResult, beside: DecodeResult) -> float:
    """The rate of tokens beside packed load, over that alone in the time that packed load leaves.

    Both are rates after a client's first token. Tokens per second would also count how long clients
    wait for a front end that also handles scoring.
    """
    assert beside.packed_share is not None, "measured on the extension"
    return alone.ms_per_token / (beside.ms_per_token * (1 - beside.packed_share))


def findings_table(found: Sequence[Finding]) -> Table:
    """Return a table with one line per ratio: median over the starts, range and aim."""
    columns = ("ratio", "what", "range", "aim")
    table = new_table("Ratios", *columns, left=columns[1:])
    colours = {True: "green", False: "yellow", None: "default"}
    for each in found:
        table.add_row(
            f"[{colours[each.is_met]}]{each.value:.3f}[/]",
            each.what,
            f"{min(each.values):.3f}–{max(each.values):.3f}" if len(each.values) > 1 else "once",
            each.aim,
        )
    return table


def phase_table(results: Sequence[DecodeResult]) -> Table:
    """Return a table with one line per phase and server: medians over the starts."""
    words = ("phase", "server")
    numbers = ("tokens/s", "ms/token", "gap P50 ms", "gap P99 ms", "items/s", "packed time")
    table = new_table("Generation", *words, *numbers, left=words)
    for phase, path in _cells(results):
        own = _of(results, path, phase)
        share = own[0].packed_share
        table.add_row(
            phase,
            path,
            f"{_median(own, 'tokens_per_s'):,.0f}",
            f"{_median(own, 'ms_per_token'):.2f}",
            f"{_median(own, 'gap_p50_ms'):.2f}",
            f"{_median(own, 'gap_p99_ms'):.2f}",
            f"{_median(own, 'items_per_s'):,.0f}",
            "-" if share is None else f"{_median(own, 'packed_share'):.0%}",
        )
    return table


def _cells(results: Sequence[DecodeResult]) -> list[tuple[str, str]]:
    phases = (ALONE, OPEN, SATURATED)
    return [(p, path) for p in phases for path in PATHS if _of(results, path, p)]


def _of(results: Sequence[DecodeResult], path: str, phase: str) -> list[DecodeResult]:
    return [each for each in results if (each.path, each.phase) == (path, phase)]


def _paired(results: Sequence[DecodeResult], phase: str) -> list[tuple[DecodeResult, DecodeResult]]:
    """Pair the results of stock and extension in a phase, start by start."""
    return list(zip(_of(results, STOCK, phase), _of(results, EXTENSION, phase), strict=True))


def _median(results: Sequence[DecodeResult], name: str) -> float:
    return statistics.median(float(getattr(each, name)) for each in results)
