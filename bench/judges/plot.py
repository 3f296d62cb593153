"""A picture of the newest verdict of every judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.drawing import picture

_LEAST = 1e-9
"""A difference of 0 is drawn as this, because the axis is logarithmic."""


def save_differences_plot(path: Path) -> None:
    """Write a PNG beside a record of verdicts, overwriting the file: for each judge, the largest
    difference of a number between stock and the extension, and the tolerance."""
    verdicts = _newest(path.with_suffix(".jsonl"))
    places = range(len(verdicts))
    names = [
        f"{each['judge']}\n{each['numbers']:,} numbers: {each['largest_difference']:.1e}"
        for each in verdicts
    ]
    largest = [max(_LEAST, each["largest_difference"]) for each in verdicts]
    tolerated = [each["tolerance"] for each in verdicts]
    with picture(path, figsize=(8, 1.2 + 0.5 * len(verdicts))) as panel:
        panel.barh(places, largest, height=0.5, color="#4878a8")
        panel.scatter(tolerated, places, marker="|", s=300, color="#c44e52", label="tolerance")
        panel.set_xscale("log")
        panel.set_xlim(_LEAST, 10 * max(tolerated))
        panel.set_yticks(places, names, fontsize=8)
        panel.invert_yaxis()
        panel.set_title("Largest difference between stock and the extension", fontsize=10)
        panel.legend(fontsize=8)


def _newest(record: Path) -> list[dict[str, Any]]:
    """The last line of each judge, in the order of their names."""
    lines = map(json.loads, record.read_text().splitlines())
    newest = {line["judge"].split()[0]: line for line in lines}
    return [newest[name] for name in sorted(newest)]
