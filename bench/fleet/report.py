"""Tables and plots of simulated fleets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.drawing import new_table, picture
from bench.fleet.policies import POLICIES
from bench.fleet.run import Outcome

_FIGURES = {"p50_ms": "P50, ms", "p99_ms": "P99, ms", "extra_work": "extra work"}


def table_of(outcomes: Iterable[Outcome]) -> Table:
    """Return a table of one case: one line per policy and load; the last columns compare P99."""
    own = list(outcomes)
    figures = ("P50, ms", "P99, ms", "one item, P50", "extra work", "parts", "resent")
    columns = ("load", "policy", *figures, "P99 of split by count", "of oracle")
    table = new_table(_case(own[0]).replace("\n", " "), *columns, left=["policy"])
    for each in own:
        alike = [other for other in own if other.load == each.load]
        split = [other.p99_ms for other in alike if other.policy.startswith("split")]
        oracle = [other.p99_ms for other in alike if other.policy == "oracle"]
        table.add_row(
            f"{each.load:.2f}",
            each.policy,
            f"{each.p50_ms:,.0f}",
            f"{each.p99_ms:,.0f}",
            "" if each.one_item_p50_ms is None else f"{each.one_item_p50_ms:,.0f}",
            f"{each.extra_work:.1%}",
            f"{each.parts:.1f}",
            str(each.resent),
            _ratio(each.p99_ms, split),
            _ratio(each.p99_ms, oracle),
            end_section=each is alike[-1],
        )
    return table


def save_plot(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write a PNG: a column per case, with P50, P99 and extra work by load."""
    cases = list(dict.fromkeys(_case(each) for each in outcomes))
    size = (3.6 * len(cases), 8)
    with picture(path, len(_FIGURES), len(cases), figsize=size, squeeze=False) as rows:
        for column, case in zip(rows.T, cases, strict=True):
            own = [each for each in outcomes if _case(each) == case]
            column[0].set_title(case, fontsize=9)
            for panel, (figure_name, label) in zip(column, _FIGURES.items(), strict=True):
                _lines(panel, own, figure_name)
                panel.set(xlabel="load", ylabel=label)
        rows[0, 0].legend(fontsize=7)


def _lines(panel: Any, outcomes: Sequence[Outcome], figure: str) -> None:
    for number, policy in enumerate(POLICIES):
        own = [each for each in outcomes if each.policy == policy]
        loads, values = [each.load for each in own], [getattr(each, figure) for each in own]
        width = 2.5 if policy == "planned" else 1.2
        panel.plot(loads, values, "o-", color=f"C{number}", label=policy, lw=width, markersize=3)
    if figure != "extra_work":
        panel.set_yscale("log")


def _case(each: Outcome) -> str:
    fleet = f"{each.replicas} replicas, {each.forward_tokens:,} tokens a forward"
    return f"{each.workload}, {each.scenario},\n{fleet}"


def _ratio(value: float, others: Sequence[float]) -> str:
    """Divide a value by the least of the others."""
    return f"{value / min(others):.2f}x" if others else ""
