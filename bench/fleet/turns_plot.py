"""A picture of subjects measured in turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.drawing import picture
from bench.fleet.turns import Comparison

_PANELS = (("faster", "P50, reference over this"), ("more", "requests/s, this over reference"))
_ROW_INCHES = 0.35


def save_turns_plot(
    path: Path, comparisons: Sequence[Comparison], reference: str, title: str
) -> None:
    """Write a PNG, overwriting the file: the ratios of every case, with their range."""
    cases = list(dict.fromkeys(f"{each.shape}, {each.clients}" for each in comparisons))
    subjects = list(dict.fromkeys(each.subject for each in comparisons))
    size = (9, 2 + _ROW_INCHES * len(cases))
    with picture(path, 1, 2, title=title, figsize=size, sharey=True) as panels:
        for panel, (field, label) in zip(panels, _PANELS, strict=True):
            panel.axvline(1, color="#9aa5b1", label=reference)
            for number, subject in enumerate(each for each in subjects if each != reference):
                own = [each for each in comparisons if each.subject == subject]
                spreads = [getattr(each, field) for each in own]
                rows = [cases.index(f"{each.shape}, {each.clients}") + number / 6 for each in own]
                (line,) = panel.plot([each[0] for each in spreads], rows, "o", label=subject)
                lowest, highest = ([each[end] for each in spreads] for end in (1, 2))
                panel.hlines(rows, lowest, highest, color=line.get_color())
            panel.set_yticks(range(len(cases)), cases, fontsize=8)
            panel.set_title(label, fontsize=9)
        panels[0].set_ylabel("shape, clients", fontsize=8)
        panels[0].invert_yaxis()  # shared
        panels[0].legend(fontsize=7)
