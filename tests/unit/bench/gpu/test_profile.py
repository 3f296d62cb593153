from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench.gpu import profile
from bench.gpu.profile import Profile, busy, show
from bench.load import Measurement
from bench.score.plan import Case
from bench.workloads import Shape

INTERVALS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)))


@given(INTERVALS)
def test_what_is_covered_is_counted_once(lengths: list[tuple[int, int]]) -> None:
    intervals = [(start, start + length) for start, length in lengths]
    covered = {at for start, stop in intervals for at in range(start, stop)}
    span = max((stop for _, stop in intervals), default=0) - min(
        (start for start, _ in intervals), default=0
    )
    assert busy(intervals) == (span, len(covered))


def event(category: str, name: str, start_us: float, us: float) -> dict[str, object]:
    return {"cat": category, "name": name, "ts": start_us, "dur": us}


EVENTS = [
    event("kernel", "attention", 1000, 300),
    event("gpu_memcpy", "copy", 1200, 200),
    event("kernel", "attention", 2000, 1000),
    event("cuda_runtime", "cudaGraphLaunch", 900, 50),
    event("cpu_op", "aten::add", 0, 9000),
    {"name": "no event of a duration", "ph": "M"},
]


class ProfiledServer:
    """A connection to a server that writes its trace at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.started: dict[str, object] = {}
        self.closed = False

    async def send(self, request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        self.asked.append(head.split()[1].decode())
        if self.asked == ["/start_profile"]:
            self.started = json.loads(body)
            with gzip.open(Path(str(self.started["output_dir"])) / "trace.json.gz", "wt") as file:
                json.dump({"traceEvents": EVENTS}, file)
        return b""

    def close(self) -> None:
        self.closed = True


def test_a_profile_is_read_from_the_servers_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = ProfiledServer()

    async def connect(_port: int, _kind: object) -> ProfiledServer:
        return connection

    async def closed_loop(*_args: object) -> Measurement:
        return Measurement(sent=7)

    monkeypatch.setattr(profile, "connect", connect)
    monkeypatch.setattr(profile, "closed_loop", closed_loop)
    found = profile.profiled("stock", 1, 4, Case(Shape(60, 2, 50), 1.0, [], []))
    assert connection.asked == ["/start_profile", "/stop_profile"]
    assert connection.closed
    assert not connection.started["with_stack"], "it would slow the server down"
    assert found == Profile(
        *("stock", 4, "60+2x50", 7, 2.0, 0.7),
        kernels=[("attention", 2, 1.3), ("copy", 1, 0.2)],
        calls=[("cudaGraphLaunch", 1, 0.05)],
    )
    console = Console(record=True, width=140)
    show([found], console)
    assert "70%" in console.export_text()


def test_a_trace_that_is_still_written_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json.gz"
    whole = gzip.compress(json.dumps({"traceEvents": EVENTS}).encode())
    trace.write_bytes(whole[:-20])
    monkeypatch.setattr(profile.time, "sleep", lambda _s: trace.write_bytes(whole))
    assert profile._read_trace(tmp_path) == EVENTS


def test_a_missing_trace_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profile, "TRACE_S", 0.0)
    with pytest.raises(OSError, match="wrote no trace"):
        profile._read_trace(tmp_path)
