from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.http_client import LoadError, post_bytes
from bench.load_generators import wrk

SUMMARY = {"requests": 5, "microseconds": 2_000_000, "errors": 0}
LATENCIES = [[1000, 3], [4000, 2]]
POOL = [post_bytes("/v1/score", body) for body in (b"{}", b"[1]")]


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a stand-in for wrk prints; it also stores its arguments and the bodies."""
    file = tmp_path / "said"
    tool = tmp_path / "wrk"
    tool.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        "bodies = open(sys.argv[sys.argv.index('--') + 1]).read().splitlines()\n"
        f"json.dump([sys.argv[1:], bodies], open('{tmp_path / 'asked'}', 'w'))\n"
        f"print('Running...\\n' + open('{file}').read())\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return file


def test_what_wrk_saw_becomes_a_measurement(said: Path) -> None:
    said.write_text(json.dumps({**SUMMARY, "latencies": LATENCIES}))
    seen = wrk.closed_loop(1234, POOL, clients=3, seconds=1.5)
    assert seen.latencies_s == [0.001] * 3 + [0.004] * 2
    assert (seen.sent, seen.seconds, seen.requests_per_s) == (5, 2.0, 2.5)
    arguments, bodies = json.loads((said.parent / "asked").read_text())
    assert bodies == ["{}", "[1]"]
    assert {"-c3", "-d2s", "http://127.0.0.1:1234"} <= set(arguments)
    assert arguments[-1] == "/v1/score"


@pytest.mark.parametrize("change", [{"errors": 1}, {"requests": 0}])
def test_errors_and_silence_end_the_run(said: Path, change: dict[str, Any]) -> None:
    said.write_text(json.dumps({**SUMMARY, "latencies": LATENCIES, **change}))
    with pytest.raises(LoadError, match="wrk saw"):
        wrk.closed_loop(1234, POOL, clients=3, seconds=1)
