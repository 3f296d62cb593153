"""The command line, with the measurement replaced by a stand-in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import __main__ as command
from bench.gate import Agreement, GateError
from bench.score.session import ModelRun
from bench.workloads import Shape
from tests.integration.support.client import wait_until
from tests.unit.bench.commands import Commands
from tests.unit.bench.results import result

SHAPE = Shape(60, 2, 50)
BOTH = ("--preset", "micro", "--preset", "tiny")
ROOT = Path(__file__).parents[3]

# The command with a server that never answers; it writes the server's process id to a file.
NEVER_READY = """
import signal
import sys
from pathlib import Path
import typer
from bench import __main__ as command
from bench.score import session
from sglang_prefill_ext.local_server import LocalServer

# Jobs in the background of a shell ignore it, and so do their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
pid_file = Path(sys.argv.pop(1))

class Server(LocalServer):
    def start(self):
        self.command = [sys.executable, "-c", "import time; time.sleep(60)"]
        super().start()
        pid_file.with_suffix(".new").write_text(str(self.pid))
        pid_file.with_suffix(".new").rename(pid_file)

session.MeasuredServer = Server
command.make_cases = lambda model, shapes, **how: []
command.make_model = lambda preset, directory: directory
typer.run(command.main)
"""


def measured(run: ModelRun, _cases: object = None) -> None:
    for repeat in range(run.plan.alternations):
        of_both = {"preset": run.preset, "repeat": repeat}
        run.results += [result("stock", **of_both), result("stock", closed=False, **of_both)]
        faster = result("extension", items_per_s=300.0, **of_both)
        run.results += [faster, result("extension", closed=False, p50_ms=2.5, **of_both)]
    run.gate.agreement[f"{run.preset} {SHAPE}"] = Agreement(100, 1e-7, 2e-7, 0, 1e-5)


def test_green_run_prints_the_ratio_and_keeps_the_record(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(command, "make_model", lambda preset, directory: directory)
    monkeypatch.setattr(command, "make_cases", lambda model, shapes, **how: [])
    monkeypatch.setattr(ModelRun, "run", measured)
    output = commands.run(command.main, *BOTH, "--name", "here")
    assert signal.getsignal(signal.SIGTERM) is before
    for ratio in ("3.00×", "4.00×"):
        assert f"{ratio}  micro  60+2x50" in output
        assert f"{ratio}  tiny   60+2x50" in output
    assert "gate green: micro 60+2x50: 100 rows" in output
    lines = commands.lines("here")
    assert len(lines) == 2 * 2 * 2 * 2
    assert {line["preset"] for line in lines} == {"micro", "tiny"}
    assert lines[0]["gate"]["micro 60+2x50"]["rank_changes"] == 0
    assert (lines[0]["dtype"], lines[0]["text"]) == ("float32", False)
    assert {"commit", "dirty", "machine", "date", "command"} <= lines[0].keys()


def test_red_gate_prints_no_figure_and_keeps_none(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disagree(run: ModelRun, _cases: object) -> None:
        measured(run)
        if run.preset == "tiny":
            raise GateError("tiny, 60+2x50: stock and extension disagree")

    monkeypatch.setattr(command, "make_model", lambda preset, directory: directory)
    monkeypatch.setattr(command, "make_cases", lambda model, shapes, **how: [])
    monkeypatch.setattr(ModelRun, "run", disagree)
    output = commands.run(command.main, *BOTH, status=1)
    assert "No figures: tiny, 60+2x50: stock and extension disagree" in output
    assert "×" not in output
    assert not commands.results.exists()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 130)]
)
def test_a_signal_ends_the_server_too(tmp_path: Path, number: int, status: int) -> None:
    pid_file, temporary = tmp_path / "pid", tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-c", NEVER_READY, str(pid_file), "--quick"]
    env = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL) as bench:
        wait_until(pid_file.exists)
        server = int(pid_file.read_text())
        os.kill(server, 0)  # it runs
        bench.send_signal(number)
        assert bench.wait(30.0) == status
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    assert list(temporary.iterdir()) == []
