"""The picture shows the newest verdict of every judge."""

from __future__ import annotations

import json
from pathlib import Path

from bench.judges import plot


def test_the_newest_verdict_of_each_judge_is_drawn(tmp_path: Path) -> None:
    record = tmp_path / "judges.jsonl"
    names = ("b 2", "a 1", "b 3")
    verdicts = [
        {"judge": name, "largest_difference": 0.0, "numbers": 5, "tolerance": 1e-5}
        for name in names
    ]
    record.write_text("".join(json.dumps(each) + "\n" for each in verdicts))
    assert [each["judge"] for each in plot._newest(record)] == ["a 1", "b 3"]
    picture = record.with_suffix(".png")
    plot.save_differences_plot(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
