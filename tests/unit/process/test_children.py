from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_prefill_ext.process.children import module_command
from tests.integration.support.client import wait_until
from tests.unit.process.processes import alive

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


PARENT = """
import subprocess, sys
from sglang_prefill_ext.process.children import tethered
child = subprocess.Popen(tethered([sys.executable, *sys.argv[1:]]), stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""
CHILD = "print('ready', flush=True); import time; time.sleep(600)"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_ends_with_who_started_it(end: signal.Signals) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PARENT, "-c", CHILD]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.send_signal(end)
        parent.wait()
    wait_until(lambda: not alive(child))


def test_a_command_does_not_start_where_its_parent_has_gone(tmp_path: Path) -> None:
    module = "sglang_prefill_ext.process.children"
    made = tmp_path / "made"
    code = f"open({str(made)!r}, 'w')"
    subprocess.run(module_command(module, "1", sys.executable, "-c", code), check=True)
    assert not made.exists()
