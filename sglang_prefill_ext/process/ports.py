"""Finds free TCP ports for servers on this machine."""

from __future__ import annotations

import contextlib
import random
import socket

from sglang_prefill_ext.errors import ServerStartError

LOOPBACK = "127.0.0.1"

_PORTS = range(20_000, 32_000)
_PORT_TRIES = 100


def free_port(host: str = LOOPBACK) -> int:
    """A TCP port that was free at an address of this machine a moment ago.

    It is below the range of outgoing connections, so none of them can take it before the server
    does. This function returns it to no other caller until this process ends: the process keeps the
    UDP port of the same number, which a server does not need.
    """
    # Independent of a seed that a test may have set, with which two processes would draw the same.
    for port in random.SystemRandom().sample(_PORTS, _PORT_TRIES):
        with (
            socket.socket() as probe,
            socket.socket(type=socket.SOCK_DGRAM) as claim,
            contextlib.suppress(OSError),
        ):
            probe.bind((host, port))
            claim.bind((host, port))
            claim.detach()
            return port
    raise ServerStartError(f"{host}: none of {_PORT_TRIES} ports is free; end what listens there.")
