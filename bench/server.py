"""Servers that are measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

from sglang_prefill_ext.local_server import LocalServer


class MeasuredServer(LocalServer):
    """A server that, once entered, does nothing beside serving."""

    def wait_ready(
        self, timeout_s: float = 600.0, on_tick: Callable[[float], None] | None = None
    ) -> float:
        """See `LocalServer.wait_ready` and `wait_settled`."""
        waited_s = super().wait_ready(timeout_s, on_tick)
        self.wait_settled()
        return waited_s


def env_of_wheel(wheel: Path, directory: Path) -> dict[str, str]:
    """Unpack a release of the extension; return the environment in which a server has that one.

    Args:
        directory: empty; it has to stay as long as the server.
    """
    with ZipFile(wheel) as archive:
        archive.extractall(directory)
    # Else what is in the current directory, maybe a checkout, comes first.
    return {"PYTHONPATH": str(directory), "PYTHONSAFEPATH": "1"}
