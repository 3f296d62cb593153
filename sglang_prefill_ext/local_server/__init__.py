"""Starts a real SGLang server on this machine, watches it, and ends all of its processes.

The demo, the tests, the benchmarks and engines on Ray run the server as a user would, as a process
of its own. All of them do it by this module.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from sglang_prefill_ext.errors import ServerStartError
from sglang_prefill_ext.local_server.environment import CPU_ARGS, has_accelerator, server_env
from sglang_prefill_ext.local_server.readiness import NO_ANSWER, is_healthy, is_settled
from sglang_prefill_ext.process.children import module_command
from sglang_prefill_ext.process.groups import members_of, signal_group
from sglang_prefill_ext.process.ports import LOOPBACK, free_port

_POLL_S = 0.25
_REAP_S = 5.0


class LocalServer:
    """A stock SGLang server as a child process with a process group of its own.

    ::

        with LocalServer(model_dir, ["--enable-prefill-only"]) as server:
            httpx.post(f"{server.base_url}/v1/score", json=...)

    Entering starts the process and waits until it answers; leaving stops it. To show progress
    while it starts, call `start()`, `wait_ready(on_tick=...)` and `stop()` oneself.
    """

    _module: ClassVar[str] = "sglang.launch_server"
    _popen: ClassVar[type[subprocess.Popen[bytes]]] = subprocess.Popen

    def __init__(
        self,
        model_path: str | Path,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        log_path: str | Path | None = None,
        host: str = LOOPBACK,
    ) -> None:
        """Prepare the command; nothing runs yet.

        Args:
            model_path: directory of the model.
            args: further flags of the server; they follow, and so override, our defaults.
            env: further environment variables, which win over this process's.
            log_path: file for the server's output, overwritten; None makes a temporary file
                that is kept, so that a failure can be read afterwards.
            host: address of this machine that it listens at.
        """
        self.host = host
        self.port = free_port(host)
        self.base_url = f"http://{host}:{self.port}"
        own = ("--model-path", str(model_path), "--host", host, "--port", str(self.port))
        device = () if has_accelerator() else CPU_ARGS
        self.command = module_command(self._module, *own, *device, *args)
        self.log_path = Path(log_path) if log_path is not None else _temporary_log()
        self._env = server_env(env)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """Process id of the server's main process, which leads its group; None before a start."""
        return self._process.pid if self._process is not None else None

    @property
    def pids(self) -> list[int]:
        """Ids of all living processes of the server, ascending; empty before a start."""
        return [] if self.pid is None else members_of(self.pid)

    @property
    def running(self) -> bool:
        """Whether the server's main process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return at once.

        Raises:
            ServerStartError: it is running already.
        """
        if self._process is not None:
            raise ServerStartError(f"the server at {self.base_url} was started already; stop() it.")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            self._process = self._popen(
                self.command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(
        self, timeout_s: float = 600.0, on_tick: Callable[[float], None] | None = None
    ) -> float:
        """Wait until ``GET /health`` answers 200, which includes one generated token.

        Args:
            timeout_s: most seconds to wait.
            on_tick: called at every poll with the seconds waited so far.

        Returns:
            The seconds waited.

        Raises:
            ServerStartError: not started, ended by itself, or not ready in time; with the last
                lines of its log.
        """
        process = self._process  # another thread may stop it
        if process is None:
            raise ServerStartError("wait_ready() needs a running server; call start() first.")
        begin = time.monotonic()
        while True:
            healthy = self._is_healthy()
            waited = time.monotonic() - begin
            if process.poll() is not None:
                raise self._start_error(f"exited with status {process.returncode}")
            if healthy:
                return waited
            if waited > timeout_s:
                raise self._start_error(f"was not ready within {timeout_s:g} s")
            if on_tick is not None:
                on_tick(waited)
            time.sleep(_POLL_S)

    def wait_settled(self, timeout_s: float = 300.0) -> None:
        """Wait until the extension has decided how it encodes texts; returns at once without it.

        The server serves meanwhile, but more slowly, so measurements have to wait.

        Raises:
            ServerStartError: it has not decided in time, or has ended.
        """
        try:
            settled = _wait_until(lambda: is_settled(self.host, self.port), timeout_s, _POLL_S)
        except NO_ANSWER as error:
            raise self._start_error(f"did not answer ({error})") from error
        if not settled:
            raise self._start_error(f"had no tokenizer decided upon within {timeout_s:g} s")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop every process of the server meanwhile (SIGSTOP); harmless when none runs."""
        group = self.pid
        if group is not None:
            signal_group(group, signal.SIGSTOP)
        try:
            yield
        finally:
            if group is not None:
                signal_group(group, signal.SIGCONT)

    def stop(self, grace_s: float = 20.0) -> None:
        """End every process of the server; harmless when none runs.

        Args:
            grace_s: seconds between SIGTERM, on which SGLang drains its requests and ends its
                children, and SIGKILL for whatever is left of the group.
        """
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            _wait_until(lambda: process.poll() is not None, grace_s)
        if process.poll() is None or members_of(process.pid):
            signal_group(process.pid, signal.SIGKILL)
        process.wait()
        _wait_until(lambda: not members_of(process.pid), _REAP_S)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the server's output; empty before a start."""
        if not self.log_path.exists():
            return ""
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _is_healthy(self) -> bool:
        return is_healthy(self.host, self.port)

    def _start_error(self, what: str) -> ServerStartError:
        return ServerStartError(
            f"the server {what}: {' '.join(self.command)}\n"
            f"Its log is {self.log_path}; the last lines:\n{self.log_tail()}"
        )


def _temporary_log() -> Path:
    handle, name = tempfile.mkstemp(prefix="sglang-prefill-", suffix=".log")
    os.close(handle)
    return Path(name)


def _wait_until(done: Callable[[], bool], timeout_s: float, poll_s: float = 0.05) -> bool:
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True
