"""A port that several processes of this machine listen on; the kernel divides the connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from sglang_prefill_ext.errors import ConfigError


def joined(host: str, port: int) -> str:
    """Return an address as one text; hosts with colons (IPv6) are put into brackets."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


@contextmanager
def reserved(host: str, port: int) -> Iterator[int]:
    """Reserve a port for processes that share it; for port 0, a free one.

    Yields:
        The port.

    Raises:
        ConfigError: it is taken, or there is no such address.
    """
    # A port that is not shared shows others that share it, too.
    with _bound(host, port, socket.SO_REUSEADDR):
        pass
    # Bound but not listening: connections go to those that listen.
    with bound(host, port) as holder:
        yield int(holder.getsockname()[1])


def bound(host: str, port: int) -> socket.socket:
    """Return a socket of this process at a shared port, not listening yet.

    Raises:
        ConfigError: a process that does not share has it, or there is no such address.
    """
    return _bound(host, port, socket.SO_REUSEPORT)


def _bound(host: str, port: int, option: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind)
        try:
            made.setsockopt(socket.SOL_SOCKET, option, 1)
            made.bind(address)
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port} cannot be used ({error}). Choose another address."
        ) from error
    return made
