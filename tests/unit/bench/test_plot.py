from __future__ import annotations

from pathlib import Path

from bench.plot import save_plot
from bench.report import compare_paths
from tests.unit.bench.results import result


def test_writes_a_picture_even_where_a_kind_of_load_is_missing(tmp_path: Path) -> None:
    results = [
        result("stock"),
        result("extension", items_per_s=400.0),
        result("stock", closed=False, preset="tiny"),
        result("extension", closed=False, preset="tiny"),
    ]
    path = tmp_path / "new" / "picture.png"
    save_plot(path, compare_paths(results), "two models")
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert path.stat().st_size > 10_000
