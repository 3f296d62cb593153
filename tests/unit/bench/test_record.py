from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bench import record
from bench.record import Result
from tests.unit.bench.results import result


def test_one_line_per_result_is_appended_with_the_context(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    record.append(path, [result("stock"), result("extension")], {"commit": "abc"})
    record.append(path, [result("stock", repeat=1)], {"commit": "def"})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["path"], line["repeat"], line["commit"]) for line in lines] == [
        ("stock", 0, "abc"),
        ("extension", 0, "abc"),
        ("stock", 1, "def"),
    ]
    lines[0].pop("commit")
    assert Result(**lines[0]) == result("stock")


def test_the_machine_names_what_figures_hang_on() -> None:
    machine = record.machine()
    assert machine["cores"] >= 1
    assert machine["memory"].endswith("kB")
    assert machine["versions"]["sglang"].count(".") >= 2
    json.dumps(machine)


def test_the_commit_is_dirty_when_a_file_differs(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "first")
    assert record.commit(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "file").write_text("two")
    assert record.commit(tmp_path)["dirty"] is True


def test_there_may_be_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert record.commit(tmp_path) == {"commit": None, "dirty": False}
    monkeypatch.setenv(record.COMMIT_ENV, "abc")
    assert record.commit(tmp_path) == {"commit": "abc", "dirty": False}
