"""Routers of a fleet, started as a user would start them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.server import running_command
from sglang_prefill_ext.errors import ServerStartError
from sglang_prefill_ext.process.ports import free_port

_READY_S = 300.0


class RouterProcesses(NamedTuple):
    """Routers that share a port, and their supervisor."""

    supervisor: subprocess.Popen[bytes]
    port: int

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pids(self) -> list[int]:
        """Process ids of the routers that live now, ascending."""
        return sorted(each.pid for each in psutil.Process(self.supervisor.pid).children())

    def listening(self) -> list[int]:
        """Process ids of the routers that accept connections."""
        return [pid for pid in self.pids if _listens(pid, self.port)]


@contextmanager
def running_routers(
    urls: Sequence[str], *flags: str, log_path: Path | None = None
) -> Iterator[RouterProcesses]:
    """Run ``sglang-prefill fleet`` while the body runs, which begins when a router listens.

    Args:
        urls: addresses of the engines.
        log_path: file for the output; None drops it.

    Raises:
        ServerStartError: no router listens in time.
    """
    port = free_port()
    where = (f"--engines={','.join(urls)}", f"--port={port}")
    with running_command("fleet", *where, *flags, log=log_path) as supervisor:
        routers = RouterProcesses(supervisor, port)
        deadline = time.monotonic() + _READY_S
        while not routers.listening():
            if supervisor.poll() is not None or time.monotonic() > deadline:
                raise ServerStartError(f"the routers did not start; their log is {log_path}.")
            time.sleep(0.1)
        yield routers


def _listens(pid: int, port: int) -> bool:
    with suppress(psutil.Error):
        return any(
            each.status == psutil.CONN_LISTEN and each.laddr.port == port
            for each in psutil.Process(pid).net_connections("tcp")
        )
    return False
