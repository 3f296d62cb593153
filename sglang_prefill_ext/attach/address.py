"""Checks and makes the socket file over which front ends reach the engine."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sglang_prefill_ext.config.knobs import flag_name
from sglang_prefill_ext.errors import ConfigError

ENGINE_FLAG = flag_name("attach")
_LONGEST = 107  # bytes of a path in a Unix socket's address
_BACKLOG = 128
_WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def checked_path(path: str, *, flag: str) -> Path:
    """Return an absolute path that a socket can have.

    Raises:
        ConfigError: it is too long.
    """
    absolute = Path(path).absolute()
    if len(os.fsencode(absolute)) > _LONGEST:
        raise ConfigError(f"{flag}: {absolute} is longer than {_LONGEST} bytes. Use a shorter one.")
    return absolute


def require_private(directory: Path, *, flag: str) -> None:
    """Check that only this user, or root, can put a socket into a directory; make it if missing.

    Raises:
        ConfigError: it belongs to somebody else, others may write to it, or it cannot be made.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise ConfigError(
            f"{flag}: {directory} cannot be created ({error.strerror}). Choose another path."
        ) from error
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{flag}: {directory} belongs to user {found.st_uid}, who could put another socket "
            "there. Choose a directory of the user that runs this."
        )
    if found.st_mode & _WRITTEN_BY_OTHERS:
        raise ConfigError(
            f"{flag}: other users may write to {directory} (mode {stat.S_IMODE(found.st_mode):o}). "
            "Choose a new directory inside it, which will be created, or chmod go-w."
        )


def engine_at(path: Path) -> Path:
    """Return the absolute path of the socket of an engine, which may start later.

    Raises:
        ConfigError: another kind of file is there, or the directory cannot be used (see
            `require_private`), or not by this user.
    """
    flag = "--attach"
    engine = checked_path(str(path), flag=flag)
    try:
        is_other_file = engine.exists() and not engine.is_socket()
    except PermissionError as error:
        raise ConfigError(
            f"{flag}: {engine} cannot be reached ({error.strerror}). "
            "Run engine and front ends as one user."
        ) from error
    if is_other_file:
        raise ConfigError(
            f"{flag}: {engine} is not a socket. Give the path that the engine has in {ENGINE_FLAG}."
        )
    if engine.parent.exists():  # else the engine will make it
        require_private(engine.parent, flag=flag)
    return engine


def claim(path: Path) -> None:
    """Check that an engine can listen at a path, and remove the socket of a dead engine.

    Raises:
        ConfigError: another engine listens there, the file is no socket, or the directory cannot be
            used (see `require_private`).
    """
    require_private(path.parent, flag=ENGINE_FLAG)
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(
            f"{ENGINE_FLAG}: no file can be created in {path.parent}. "
            "Choose a directory that you may write."
        )
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise ConfigError(f"{ENGINE_FLAG}: {path} is not a socket. Choose another path.")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # an engine that stands still lets others wait
        if probe.connect_ex(os.fspath(path)) != errno.ECONNREFUSED:
            raise ConfigError(
                f"{ENGINE_FLAG}: another engine listens at {path}. Stop it, or choose another path."
            )
    path.unlink(missing_ok=True)


@contextmanager
def listening(path: Path) -> Iterator[int]:
    """Listen at a path that nobody but this user may connect to.

    Yields:
        The descriptor of the socket, which the caller has to close. The file is removed in the
        end, unless another engine has replaced it.

    Raises:
        ConfigError: see `claim`.
    """
    claim(path)
    with socket.socket(socket.AF_UNIX) as made:
        # The file gets the mode of its socket; the umask is the whole process's.
        os.fchmod(made.fileno(), 0o600)
        made.bind(os.fspath(path))
        made.listen(_BACKLOG)
        ours = path.lstat()
        descriptor = made.detach()
    try:
        yield descriptor
    finally:
        with suppress(FileNotFoundError):
            if os.path.samestat(path.lstat(), ours):
                path.unlink()


def stranger_at(path: Path) -> str:
    """Say why another user may listen at a path; empty if only this user can."""
    try:
        owner, directory = path.lstat().st_uid, path.parent.stat()
    except OSError as error:
        return f"{path} cannot be looked at ({error.strerror}). Start the engine again."
    if owner != os.geteuid():
        return f"{path} belongs to user {owner}. Run engine and front ends as one user."
    if directory.st_mode & _WRITTEN_BY_OTHERS:
        return f"Other users may write to {path.parent}. Give the socket a directory of its own."
    return ""
