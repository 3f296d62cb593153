from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sglang_prefill_ext.process.children import module_command

ROOT = Path(__file__).parents[3]
SERVICER = "sglang_prefill_ext.grpc_frontend.servicer"


@pytest.mark.parametrize("module", [SERVICER, "sglang_prefill_ext.texts.comparison_process"])
def test_a_child_imports_nothing_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    for planted in ("msgspec", "grpc", "uvloop", "numpy"):
        (tmp_path / f"{planted}.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    run = subprocess.run(module_command(module, "{"), capture_output=True, text=True, check=False)
    assert run.returncode != 0  # of what it was given
    assert "planted" not in run.stderr
    assert "Error" in run.stderr


def test_in_a_source_checkout_a_child_finds_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert module_command("m", "a") == [sys.executable, "-m", "m", "a"]


def test_a_directory_that_is_gone_is_no_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert module_command("m") == [sys.executable, "-P", "-m", "m"]
