"""TCP ports of this machine, free or shared by several processes; and connections that notice it
when the other host vanishes."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sglang_prefill_ext.errors import ConfigError, ServerStartError

LOOPBACK = "127.0.0.1"

KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (
            *(("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)),
            ("TCP_USER_TIMEOUT", 60_000),  # the others count only if all that was sent has arrived
        )
        if hasattr(socket, name)
    ),
)
"""Options of a connection by which a host that has vanished is noticed within a minute, whether or
not something was sent to it meanwhile."""

LONGEST_IDLE_S = 3.0
"""How long an idle connection to SGLang is kept: less than the 5 s after which SGLang closes it, as
a request that is sent at that moment is lost."""

_PORTS = range(20_000, 32_000)
_PORT_TRIES = 100
_LISTENER_POLL_S = 0.02


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
            suppress(OSError),
        ):
            probe.bind((host, port))
            claim.bind((host, port))
            claim.detach()
            return port
    raise ServerStartError(f"{host}: none of {_PORT_TRIES} ports is free; end what listens there.")


def await_listener(host: str, port: int, most_s: float) -> bool:
    """Wait until something listens at an address; return False if nothing does in time.

    Args:
        most_s: of attempts; the last one may take a second more.
    """
    end_s = time.monotonic() + most_s
    while time.monotonic() < end_s:
        with suppress(OSError), socket.create_connection((host, port), timeout=1.0):
            return True
        time.sleep(_LISTENER_POLL_S)
    return False


def joined(host: str, port: int) -> str:
    """Return an address as one text; hosts with colons (IPv6) are put into brackets."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


@contextmanager
def reserved(host: str, port: int, flag: str = "--port") -> Iterator[int]:
    """Reserve a port for processes that share it, among which the kernel divides connections.

    Args:
        port: 0 for a free one.
        flag: that the port was given by.

    Yields:
        The port.

    Raises:
        ConfigError: it is taken, or there is no such address.
    """
    # A port that is not shared shows others that share it, too.
    with bound(host, port, flag, option=socket.SO_REUSEADDR):
        pass
    # Bound but not listening: connections go to those that listen.
    with bound(host, port, flag) as holder:
        yield int(holder.getsockname()[1])


def bound(
    host: str, port: int, flag: str = "--port", *, option: int = socket.SO_REUSEPORT
) -> socket.socket:
    """Return a socket of this process at a port, not listening yet.

    Args:
        flag: that the port was given by.
        option: of the socket; by default the port is shared with processes that share it.

    Raises:
        ConfigError: a process that does not share has it, or there is no such address.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind)
        try:
            made.setsockopt(socket.SOL_SOCKET, option, 1)
            made.bind(address)
        except OSError:
            made.close()
            raise
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--host {host} {flag} {port} cannot be used ({error}). Choose another address."
        ) from error
    return made


def listener_at(host: str, port: int, backlog: int) -> socket.socket:
    """Return a socket of this process that listens at a port, which it shares as `bound` does.

    Its connections keep nobody from the port while they end, which takes a minute: `reserved`
    refuses a port only because of what is bound to it or listens there.

    Raises:
        ConfigError: see `bound`.
    """
    made = bound(host, port)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections inherit it
    made.listen(backlog)
    return made
