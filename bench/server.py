"""Servers that are measured."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.http_client import LoadError
from bench.status import status_page
from sglang_prefill_ext.local_server import LocalServer

_SETTLED_S = 300.0
_POLL_S = 0.2


class MeasuredServer(LocalServer):
    """A server that, once entered, does nothing beside serving.

    The extension looks for the fastest way to encode texts while it serves already; a measurement
    must have neither the old way nor the search in it.
    """

    def wait_ready(
        self, timeout_s: float = 600.0, on_tick: Callable[[float], None] | None = None
    ) -> float:
        """See `LocalServer`.

        Raises:
            LoadError: it is ready, but never done with that search.
        """
        waited_s = super().wait_ready(timeout_s, on_tick)
        wait_until_settled(self.port)
        return waited_s


def wait_until_settled(port: int, timeout_s: float = _SETTLED_S) -> None:
    """Wait until a server has decided how it encodes texts; stock never has to.

    Raises:
        LoadError: it has not in time.
    """
    deadline = time.monotonic() + timeout_s
    while (status := status_page(port)) is not None:
        if status["frontend"]["tokenizer"]["ready"]:
            return
        if time.monotonic() > deadline:
            raise LoadError(f"port {port}: no decision on the tokenizer within {timeout_s:g} s")
        time.sleep(_POLL_S)
