"""Start commands by a fork server that has imported SGLang already."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from sglang_prefill_ext.local_server import LocalServer
from sglang_prefill_ext.local_server.environment import has_accelerator
from tests.forking.process import ask

_ROOT = Path(__file__).parents[2]
_READ_LATE = (
    *("PREFILL_ONLY_", "PYTEST_", "RAY_", "SGLANG_CPU_OMP_THREADS_BIND", "SGLANG_OTLP_"),
    "SGLANG_MAMBA_CONV_DTYPE",
    "SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT",
    "SGLANG_PLUGINS",  # imports only need the platform's plugin, which all these tests include
    "PYTHONBREAKPOINT",  # Ray sets it in the process that connects to a cluster
    "PYTHONHASHSEED",  # forked processes have the same order of sets in any case
    "PYTHONPATH",  # adds folders, in which none of these imports finds anything
)
"""Beginnings of names of variables that do not affect imports."""


class ForkServer:
    """A fork server for commands whose environments are equal in what imports read."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.forking.process", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, cwd=_ROOT, env=dict(env), pass_fds=[theirs.fileno()]
            )
        self._env = _read_early(env)

    def serves(self, env: Mapping[str, str]) -> bool:
        """Whether this fork server's imports are valid for another environment."""
        return self._env == _read_early(env) and self._process.poll() is None

    def close(self) -> None:
        """End the fork server; the processes that it has forked live on."""
        self.channel.close()
        self._process.wait()


_kept: list[ForkServer] = []
_MOST_KEPT = 2
"""One fork server for most servers, and one for a module with another environment."""
_one_at_a_time = threading.RLock()


@contextmanager
def fork_server(env: Mapping[str, str]) -> Iterator[ForkServer]:
    """A fork server for an environment; the first one is kept, and of all others the last.

    Even for a single server, this does one import instead of three.
    """
    with _one_at_a_time:
        found = next((each for each in _kept if each.serves(env)), None)
        if found is None:
            if len(_kept) == _MOST_KEPT:
                _kept.pop().close()
            found = ForkServer(env)
            _kept.append(found)
        yield found


@atexit.register
def _close_all() -> None:
    while _kept:
        _kept.pop().close()


def _read_early(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(_READ_LATE)}


class ForkedPopen(subprocess.Popen[Any]):
    """`Popen` of ``python -m MODULE`` and ``python -c CODE``, by a fork server.

    Takes `env`, `cwd`, the three files and `start_new_session`; the process is a child like any
    other.
    """

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        names = subprocess.Popen._execute_child.__code__.co_varnames[2:]  # type: ignore[attr-defined]
        given = dict(zip(names, rest, strict=False))
        env = dict(os.environ) if given["env"] is None else given["env"]
        theirs = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        with fork_server(env) as server:
            self.pid = ask(
                server.channel,
                list(map(str, args)),
                {n: n if file == -1 else file for n, file in enumerate(theirs)},
                env=env,
                cwd=str(given["cwd"] or os.getcwd()),
                new_session=given["start_new_session"],
            )
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]


Popen: type[subprocess.Popen[Any]] = subprocess.Popen if has_accelerator() else ForkedPopen
"""How tests start commands that import SGLang. With a GPU the import uses it; a fork cannot."""


class ForkedServer(LocalServer):
    """A server whose processes are forked if possible, and killed when no longer needed.

    Otherwise it is a `LocalServer`. SGLang notices a request to end up to 5 s later, then waits
    for its requests, and kills its processes.
    """

    _popen: ClassVar[type[subprocess.Popen[bytes]]] = Popen

    def _is_healthy(self) -> bool:
        """Whether the log says so, after a first request; ``GET /health`` takes a second more."""
        return b"fired up and ready" in self.log_path.read_bytes()

    def stop(self, grace_s: float = 0.0) -> None:
        super().stop(grace_s)
