"""Starts servers and processes for one test module alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sglang_prefill_ext.local_server import LocalServer
from sglang_prefill_ext.local_server.environment import server_env
from tests.forking.launch import ForkedServer, Popen
from tests.integration.support.client import Client

ROOT = Path(__file__).parents[3]
LOGS = ROOT / ".cache" / "logs"
TWO_RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
"""One core for each of two ranks; without this SGLang needs a NUMA node for each rank."""

_PROCESS_TIMEOUT_S = 1200


class Serving(NamedTuple):
    server: LocalServer
    client: Client


@contextmanager
def client_of(server: LocalServer) -> Iterator[Client]:
    """A client of a running server; its connections are closed on leaving."""
    client = Client(server.base_url)
    with client.http:
        yield client


@contextmanager
def serving(
    model: Path, name: str, *flags: str, env: Mapping[str, str] | None = None
) -> Iterator[Serving]:
    """A server for the caller alone and its client; the log is ``.cache/logs/<name>.log``.

    It sleeps while it is idle, because each of its schedulers would otherwise keep a core busy.
    """
    log = LOGS / f"{name}.log"
    flags = ("--sleep-on-idle", *flags)
    with ForkedServer(model, flags, env=env, log_path=log) as server, client_of(server) as client:
        yield Serving(server, client)


def run_python(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the interpreter to its end, whatever its exit status."""
    command = [sys.executable, *map(str, args)]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=server_env(),
        capture_output=True,
        text=True,
        timeout=_PROCESS_TIMEOUT_S,
        check=False,
    )


def run_forked(
    command: Sequence[str], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m MODULE`` or ``-c CODE`` to its end, forked after SGLang was imported."""
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Popen(command, cwd=ROOT, env=server_env(env), **how) as process:
        output, errors = process.communicate(timeout=_PROCESS_TIMEOUT_S)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def run_script(name: str, *args: str | Path, env: Mapping[str, str] | None = None) -> str:
    """Run a module of `tests/integration/programs`, which must succeed; return what it printed."""
    command = [sys.executable, "-m", f"tests.integration.programs.{name}", *map(str, args)]
    run = run_forked(command, env)
    assert run.returncode == 0, run.stderr[-4000:]
    return run.stdout
