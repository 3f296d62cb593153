"""Show what was measured: tables on the console and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

from rich.console import Console
from rich.table import Table

from sglang_prefill_ext.demo.measure import PATHS, Path, Ranking, Throughput

_SHOWN = 10
_NUMBERS_WIDTH = 32  # characters of all columns of numbers together


def show_rankings(
    console: Console,
    query: str,
    items: Sequence[str],
    relevance: Sequence[int],
    rankings: Mapping[Path, Ranking],
) -> None:
    """Print the best items of both paths side by side."""
    title = f"Best of {len(items)} items for “{query}”"
    # Seven columns have to fit into 80 characters, hence no lines between them.
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    item_width = min(44, max(12, (console.width - _NUMBERS_WIDTH) // len(PATHS)))
    table.add_column("#", justify="right", min_width=2)
    for path in PATHS:
        table.add_column(f"{path}: item", width=item_width, overflow="ellipsis", no_wrap=True)
        table.add_column("score", justify="right", min_width=6)
        table.add_column("grade", justify="right", min_width=5)
    for place in range(min(_SHOWN, len(items))):
        row = [str(place + 1)]
        for path in PATHS:
            item = rankings[path].order[place]
            row += [items[item], f"{rankings[path].scores[item]:.4f}", str(relevance[item])]
        table.add_row(*row)
    console.print(table)


def show_costs(
    console: Console, rankings: Mapping[Path, Ranking], quality: Mapping[Path, float]
) -> None:
    """Print what the request cost on each path, and the largest difference between the scores."""
    table = Table(title="This request", title_justify="left")
    for column in ("path", "median latency", "tokens computed", "scheduler requests", "NDCG@10"):
        table.add_column(column, justify="left" if column == "path" else "right")
    for path in PATHS:
        ranking = rankings[path]
        table.add_row(
            path,
            f"{ranking.latency_ms:.1f} ms",
            f"{ranking.cost.tokens:,}",
            f"{ranking.cost.messages:,}",
            f"{quality[path]:.4f}",
        )
    console.print(table)
    pairs = zip(rankings["packed"].scores, rankings["stock"].scores, strict=True)
    largest = max(abs(a - b) for a, b in pairs)
    same = "the same order" if rankings["packed"].order == rankings["stock"].order else "reordered"
    console.print(f"Largest difference in score: [bold]{largest:.1e}[/]; {same}.\n")


def show_throughput(console: Console, throughput: Mapping[int, Throughput]) -> None:
    """Print items per second by number of clients, ratio first."""
    title = "Items per second: median (range) of windows in turn"
    table = Table(title=title, title_justify="left")
    for column in ("clients", "ratio", *PATHS):
        table.add_column(column, justify="right")
    for clients, seen in throughput.items():
        rates = [_with_range(seen.per_s[path], ",.0f") for path in PATHS]
        table.add_row(str(clients), _with_range(seen.ratios, ".1f", "x"), *rates)
    console.print(table)


def _with_range(values: Sequence[float], form: str, unit: str = "") -> str:
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{median:{form}}{unit} ({low:{form}}-{high:{form}})"


def plot(
    file: FilePath, rankings: Mapping[Path, Ranking], throughput: Mapping[int, Throughput]
) -> None:
    """Write a PNG: scores of both paths against each other, and items per second."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    left.plot([0, 1], [0, 1], color="0.8", zorder=0)
    left.scatter(rankings["stock"].scores, rankings["packed"].scores, s=18)
    left.set(xlabel="score, stock path", ylabel="score, packed path", title="Same numbers")
    width = 0.4
    for shift, path in enumerate(PATHS):
        places = [place + (shift - 0.5) * width for place in range(len(throughput))]
        rates = [statistics.median(seen.per_s[path]) for seen in throughput.values()]
        right.bar_label(right.bar(places, rates, width, label=path), fmt="{:,.0f}")
    right.set_xticks(range(len(throughput)), [str(n) for n in throughput])
    right.set(xlabel="clients", ylabel="items per second", title="More of them")
    right.legend()
    figure.savefig(file, dpi=120)
    plt.close(figure)
