"""The socket file over which front ends reach the engine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sglang_prefill_ext.errors import ConfigError

_LONGEST = 107  # bytes of a path in a Unix socket's address


def checked_path(path: str, *, flag: str) -> Path:
    """Return an absolute path that a socket can have.

    Raises:
        ConfigError: it is too long.
    """
    absolute = Path(path).absolute()
    if len(os.fsencode(absolute)) > _LONGEST:
        raise ConfigError(f"{flag}: {absolute} is longer than {_LONGEST} bytes. Use a shorter one.")
    return absolute


def claim(path: Path, *, flag: str) -> None:
    """Make the directory of a socket, for its owner alone; a dead engine's socket may be there.

    Raises:
        ConfigError: another engine listens there, or there is something else; or nothing can be
            made there.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{flag}: {path.parent} cannot be made ({error.strerror}). Choose another path."
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(
            f"{flag}: nothing can be made in {path.parent}. Choose a directory that you may write."
        )
    if not path.exists():
        return
    if not path.is_socket():
        raise ConfigError(f"{flag}: {path} is not a socket. Choose another path.")
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(os.fspath(path)) == 0:
            raise ConfigError(
                f"{flag}: another engine listens at {path}. Stop it, or choose another path."
            )


@contextmanager
def owner_only() -> Iterator[None]:
    """What is made inside is accessible for its owner only."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
