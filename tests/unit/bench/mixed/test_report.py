from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench.mixed.mix import MixResult
from bench.mixed.plan import FCFS
from bench.mixed.report import longest_of_fcfs, mix_table, save_mix_plot
from bench.plan import STOCK
from tests.unit.bench.results import mix_result

RESULTS = [
    mix_result(STOCK, longest_p99_ms=400.0, mean_slowdown=9.0, requests_per_forward=None),
    mix_result(FCFS, longest_p99_ms=200.0, mean_slowdown=3.04),
    mix_result("srpt", longest_p99_ms=210.0, mean_slowdown=2.96),
    replace(mix_result(FCFS, longest_p99_ms=500.0), load_of="extension", rate_per_s=80.0),
]


def _lines(results: list[MixResult]) -> list[str]:
    console = Console(width=120, file=StringIO(), record=True)
    console.print(mix_table(results))
    return [line for line in console.export_text().splitlines() if "95% of" in line]


def test_one_line_per_result_with_every_column() -> None:
    stock, fcfs, srpt, other = (line.split() for line in _lines(RESULTS))
    assert stock[3:] == ["stock", "40.0", "9.0×", "12.0", "4.0", "-", "400", "2.00×"]
    assert fcfs[3:] == ["fcfs", "40.0", "3.0×", "12.0", "4.0", "1.5", "200", "1.00×"]
    assert srpt[3:] == ["srpt", "40.0", "3.0×", "12.0", "4.0", "1.5", "210", "1.05×"]
    assert other[:3] == ["95%", "of", "extension"]
    assert other[-1] == "1.00×"  # of fcfs under its own load


def test_longest_is_compared_under_the_same_load() -> None:
    assert longest_of_fcfs(RESULTS[2], RESULTS) == pytest.approx(1.05)
    assert longest_of_fcfs(RESULTS[3], RESULTS[:3]) is None
    assert _lines(RESULTS[:1])[0].split()[-1] == "-"


def test_what_meets_its_aim_is_green() -> None:
    console = Console(
        width=120, file=StringIO(), record=True, force_terminal=True, color_system="standard"
    )
    console.print(mix_table(RESULTS[1:3]))
    fcfs, srpt = (
        line for line in console.export_text(styles=True).splitlines() if "95% of" in line
    )
    green, yellow = "\x1b[32m", "\x1b[33m"
    assert (fcfs.count(green), fcfs.count(yellow)) == (1, 1)
    assert (srpt.count(green), srpt.count(yellow)) == (2, 0)


def test_writes_a_picture_with_a_column_per_load(tmp_path: Path) -> None:
    path = tmp_path / "new" / "picture.png"
    for results in (RESULTS, RESULTS[:1]):
        save_mix_plot(path, results, "two loads")
        assert path.read_bytes().startswith(b"\x89PNG\r\n")
