"""The launcher against a stand-in process; the real server is started by the server tests."""

from __future__ import annotations

import http.client
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sglang_prefill_ext import local_server
from sglang_prefill_ext.errors import ServerStartError
from sglang_prefill_ext.local_server import LocalServer
from sglang_prefill_ext.local_server.environment import CPU_ARGS
from sglang_prefill_ext.process.children import module_command

# Answers 503 twice and 200 from then on, beside a child that ignores SIGTERM.
STAND_IN = """
import http.server, subprocess, sys
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child])
class Handler(http.server.BaseHTTPRequestHandler):
    calls = 0
    def do_GET(self):
        Handler.calls += 1
        self.send_response(200 if Handler.calls > 2 else 503)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

# Has a status page by which it settles on the third question, or none at all.
STATUS_PAGE = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    calls = 0
    def do_GET(self):
        Handler.calls += 1
        self.send_response({status})
        self.end_headers()
        ready = Handler.calls > {undecided}
        self.wfile.write(json.dumps({{"frontend": {{"tokenizer": {{"ready": ready}}}}}}).encode())
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("listening", flush=True)
server.serve_forever()
"""


def stand_in(log_path: Path, code: str) -> LocalServer:
    server = LocalServer("model", log_path=log_path)
    server.command = [sys.executable, "-c", code, str(server.port)]
    return server


@pytest.fixture(autouse=True)
def fast_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "_POLL_S", 0.05)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    server = stand_in(tmp_path / "server.log", STAND_IN)
    yield server
    server.stop(grace_s=0.0)


def test_waits_until_healthy_and_leaves_no_process_behind(server: LocalServer) -> None:
    ticks: list[float] = []
    server.start()
    waited = server.wait_ready(30.0, ticks.append)
    leader, pids = server.pid, server.pids

    assert len(ticks) >= 2  # two refusals came before the health check passed
    assert ticks == sorted(ticks)
    assert ticks[-1] <= waited
    assert len(pids) == 2
    assert leader in pids
    assert all(os.getpgid(pid) == leader != os.getpgrp() for pid in pids)

    server.stop(grace_s=10.0)

    assert server.pid is None
    assert server.pids == []
    assert not any(is_alive(pid) for pid in pids)
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", server.port).connect()


def test_a_paused_server_stands_still_and_goes_on(server: LocalServer) -> None:
    with server.paused():  # there is none yet
        server.start()
    server.wait_ready(30.0)
    with server.paused():
        assert server.pids
        while {state(pid) for pid in server.pids} != {"T"}:
            time.sleep(0.01)
    assert server.wait_ready(30.0) >= 0.0
    assert "T" not in {state(pid) for pid in server.pids}


def test_one_that_is_stopped_while_it_starts_has_not_started(tmp_path: Path) -> None:
    server = stand_in(tmp_path / "server.log", "import time; time.sleep(600)")
    server.start()
    with pytest.raises(ServerStartError, match="the server exited with status -"):
        server.wait_ready(30.0, lambda _: server.stop(grace_s=0.0))
    assert not server.running


def test_context_stops_the_server_when_its_body_fails(server: LocalServer) -> None:
    pids: list[int] = []

    def failing_body() -> None:
        with server:
            pids.extend(server.pids)
            raise KeyError("body")

    with pytest.raises(KeyError, match="body"):
        failing_body()
    assert pids
    assert not any(is_alive(pid) for pid in pids)


def test_kills_a_server_that_ignores_sigterm(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf')\n"
    server = stand_in(tmp_path / "server.log", code + "time.sleep(600)")
    server.start()
    pid = server.pid
    local_server._wait_until(lambda: "deaf" in server.log_tail(), 10.0)
    server.stop(grace_s=0.2)
    assert pid is not None
    assert not is_alive(pid)


def test_a_server_that_dies_fails_at_once_with_its_last_lines(tmp_path: Path) -> None:
    code = "import sys; print('first'); print('no such model'); sys.exit(3)"
    server = stand_in(tmp_path / "new" / "server.log", code)
    with pytest.raises(ServerStartError, match=r"exited with status 3(.|\n)*no such model"), server:
        pytest.fail("the body of the context must not run")
    assert server.pid is None
    assert server.log_tail(1) == "no such model"


def test_a_server_that_is_never_ready_fails_after_the_time_limit(tmp_path: Path) -> None:
    server = stand_in(tmp_path / "server.log", "import time; time.sleep(600)")
    server.start()
    try:
        with pytest.raises(ServerStartError, match=r"not ready within 0\.3 s"):
            server.wait_ready(0.3)
    finally:
        server.stop(grace_s=0.0)


@contextmanager
def listening(tmp_path: Path, status: int, undecided: int) -> Iterator[LocalServer]:
    code = STATUS_PAGE.format(status=status, undecided=undecided)
    server = stand_in(tmp_path / "server.log", code)
    server.start()
    try:
        deadline = time.monotonic() + 30
        while "listening" not in server.log_tail() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield server
    finally:
        server.stop(grace_s=0.0)


@pytest.mark.parametrize(("status", "asked"), [(200, 3), (404, 1)], ids=["extension", "stock"])
def test_waits_until_the_extension_has_decided(tmp_path: Path, status: int, asked: int) -> None:
    with listening(tmp_path, status, undecided=2) as server:
        server.wait_settled(30.0)
        assert server.log_tail().count("GET /prefill_only/status") == asked


def test_a_server_that_never_decides_fails_after_the_time_limit(tmp_path: Path) -> None:
    with (
        listening(tmp_path, 200, undecided=10_000) as server,
        pytest.raises(ServerStartError, match=r"no tokenizer decided upon within 0\.2 s"),
    ):
        server.wait_settled(0.2)


def test_a_server_that_ends_before_it_has_decided_is_an_error_with_its_log(tmp_path: Path) -> None:
    with listening(tmp_path, 200, undecided=10_000) as server:
        server.stop(grace_s=0.0)
        with pytest.raises(ServerStartError, match=r"did not answer(.|\n)*listening"):
            server.wait_settled(30.0)


def test_wrong_order_of_calls_is_an_error(server: LocalServer) -> None:
    with pytest.raises(ServerStartError, match="call start"):
        server.wait_ready(1.0)
    server.stop()  # nothing runs: no effect
    server.start()
    with pytest.raises(ServerStartError, match="started already"):
        server.start()


@pytest.mark.parametrize(("accelerator", "defaults"), [(False, list(CPU_ARGS)), (True, [])])
def test_command_has_cpu_defaults_only_without_an_accelerator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, accelerator: bool, defaults: list[str]
) -> None:
    monkeypatch.setattr(local_server, "has_accelerator", lambda: accelerator)
    server = LocalServer("dir/model", ["--dtype", "bfloat16"], log_path=tmp_path / "log")
    assert server.command == [
        *module_command("sglang.launch_server", "--model-path", "dir/model"),
        *("--host", "127.0.0.1", "--port", str(server.port)),
        *defaults,
        *("--dtype", "bfloat16"),  # last, so that the caller's flag wins
    ]
    assert server.base_url == f"http://127.0.0.1:{server.port}"


def test_log_is_temporary_unless_named_and_empty_before_a_start(tmp_path: Path) -> None:
    assert LocalServer("m", log_path=tmp_path / "none.log").log_tail() == ""
    unnamed = LocalServer("m")
    assert unnamed.log_path.exists()
    unnamed.log_path.unlink()


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie that its parent has not reaped yet does not."""
    try:
        return state(pid) != "Z"
    except OSError:
        return False


def state(pid: int) -> str:
    """The state of a process as a letter, see proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
