"""Tables and pictures in the style that all benchmarks share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from rich import box
from rich.table import Table

mpl.use("Agg")


def new_table(title: str, *columns: str, left: Collection[str] = ()) -> Table:
    """Return a table without rows.

    Args:
        left: columns of words, aligned to the left; all other columns are aligned to the right.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right")
    return table


@contextmanager
def picture(path: Path, *shape: int, title: str = "", **options: Any) -> Iterator[Any]:
    """Write a PNG of what the body draws, overwriting the file.

    Args:
        shape: rows and columns of panels.
        options: further options of `pyplot.subplots`.

    Yields:
        The panels, as `pyplot.subplots` returns them.
    """
    figure, panels = plt.subplots(*shape, layout="constrained", **options)
    yield panels
    if title:
        figure.suptitle(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
