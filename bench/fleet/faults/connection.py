"""A client's connection to routers, which another thread may cut."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from contextlib import suppress

from sglang_prefill_ext.frontend.options import TIMEOUT_HEADER

SLACK_S = 3.0
"""An answer may come this much after its deadline, because a router may be stopped for a second."""


class Connection:
    """A connection to a port of this machine, opened at its first use.

    Attributes:
        is_cut: whether it was cut since it was opened.
    """

    def __init__(self, port: int) -> None:
        self.is_cut = False
        self._http = http.client.HTTPConnection("127.0.0.1", port)

    def post(
        self, path: str, body: bytes, headers: Mapping[str, str], left_s: float
    ) -> tuple[int, bytes]:
        """Return status and content of an answer.

        Args:
            left_s: seconds until the deadline, which is sent to the server.

        Raises:
            OSError, http.client.HTTPException: no answer came.
        """
        self._http.timeout = left_s + SLACK_S
        if self._http.sock is not None:
            self._http.sock.settimeout(self._http.timeout)
        told = {"content-type": "application/json", TIMEOUT_HEADER: str(int(left_s * 1e3))}
        self._http.request("POST", path, body, {**told, **headers})
        response = self._http.getresponse()
        return response.status, response.read()

    def cut(self) -> None:
        self.is_cut = True
        with suppress(OSError, AttributeError):  # it may be closed just now
            self._http.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        self._http.close()
        self.is_cut = False
