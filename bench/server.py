"""Start servers for measurements."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import httpx

from bench.http_client import LoadError
from sglang_prefill_ext.local_server import LocalServer
from sglang_prefill_ext.local_server.environment import server_env

KEEP_ALIVE_S = 3600
"""SGLang closes idle connections after 5 s, but load generators keep them."""

_GRACE_S = 120.0
"""How long routers and gRPC front ends may take to end, on a busy machine."""


class MeasuredServer(LocalServer):
    """A server that keeps idle connections. When it is ready, it has finished all other work."""

    def __init__(
        self,
        model: Path,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        log_path: Path | None = None,
    ) -> None:
        kept = {"SGLANG_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S)}
        super().__init__(model, args, env={**kept, **(env or {})}, log_path=log_path)

    def wait_ready(
        self, timeout_s: float = 600.0, on_tick: Callable[[float], None] | None = None
    ) -> float:
        """See `LocalServer.wait_ready` and `wait_settled`."""
        waited_s = super().wait_ready(timeout_s, on_tick)
        self.wait_settled()
        return waited_s


@contextmanager
def running_command(*args: str, log: Path | None) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``sglang-prefill`` with these arguments, as a user would, while the body runs.

    Args:
        log: file for the output; None drops it.
    """
    command = [sys.executable, "-c", "from sglang_prefill_ext.cli import main; main()", *args]
    with (log or Path(os.devnull)).open("wb") as output:
        process = subprocess.Popen(command, env=server_env(), stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(_GRACE_S)


def empty_cache(port: int) -> None:
    """Empty a server's prefix cache, once nothing is under way.

    Raises:
        LoadError: the server cannot.
    """
    answer = httpx.post(f"http://127.0.0.1:{port}/flush_cache", params={"timeout": 60}, timeout=90)
    if answer.is_error:
        raise LoadError(f"The prefix cache cannot be emptied: {answer.text}")


def env_of_wheel(wheel: Path, directory: Path) -> dict[str, str]:
    """Unpack a wheel of the extension; return the environment of a server that uses it.

    Args:
        directory: an empty directory, which must exist as long as the server runs.
    """
    with ZipFile(wheel) as archive:
        archive.extractall(directory)
    # Without a safe path, the package in the current directory, maybe a checkout, would come first.
    return {"PYTHONPATH": str(directory), "PYTHONSAFEPATH": "1"}
