"""Keeps comparisons of tokenizers on disk: one on each machine, not one at every start."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from sglang_prefill_ext.texts.comparison import Comparison
from sglang_prefill_ext.texts.comparison_process import LONGEST_S, wait_a_little

logger = logging.getLogger(__name__)

_DECODER = msgspec.json.Decoder(Comparison)


def key_of(json: str, *versions: str) -> str:
    """Return the key of a comparison: a digest of the tokenizer and of all versions involved."""
    digest = hashlib.sha256(json.encode())
    for each in versions:
        digest.update(f"\0{each}".encode())
    return digest.hexdigest()


def processor() -> str:
    """Features of this machine's processor, by which libraries choose their code.

    They are part of the key because different machines may share a home directory.
    """
    names = ("model name", "flags", "Features")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    known = sorted({line for line in lines if line.startswith(names)})
    return "\n".join([platform.machine(), *known])


def remembered(directory: Path, key: str, compare: Callable[[], Comparison]) -> Comparison:
    """Return the comparison on disk; if there is none, compare and write it there.

    Of several processes one compares, and the others wait for it. Without a usable directory every
    process compares for itself.

    Raises:
        Exception: whatever `compare` raises.
    """
    file = directory / f"{key}.json"
    with ExitStack() as held:
        try:
            _make_private(directory)
            held.enter_context(_locked(file.with_suffix(".lock")))
            known = _read(file)
        except OSError as error:
            _log_useless(directory, error)
            return compare()
        if known is not None:
            return known
        comparison = compare()
        try:
            _write(file, comparison)
        except OSError as error:
            _log_useless(directory, error)
        return comparison


def _make_private(directory: Path) -> None:
    """Make the directory writable for this user only; anybody who could write a comparison there
    could have texts encoded wrongly.

    Raises:
        OSError: it cannot be made, or is another user's.
    """
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(f"it belongs to user {found.st_uid}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        directory.chmod(0o700)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock.

    Raises:
        TimeoutError: another process has held it for longer than a comparison can take.
        SystemExit: this process is about to end.
    """
    latest_s = time.monotonic() + LONGEST_S
    with open(path, "ab", opener=_no_link) as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > latest_s:
                    raise TimeoutError(f"{path} is held for too long") from None
            wait_a_little()
        yield


def _read(file: Path) -> Comparison | None:
    try:
        with open(file, "rb", opener=_no_link) as opened:
            return _DECODER.decode(opened.read())
    except (FileNotFoundError, msgspec.DecodeError):  # never written, or by another version
        return None


def _write(file: Path, comparison: Comparison) -> None:
    partly = file.with_suffix(".part")
    with open(partly, "wb", opener=_no_link) as opened:
        opened.write(msgspec.json.encode(comparison))
    partly.replace(file)  # atomic: readers never see a part of it


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _log_useless(directory: Path, error: OSError) -> None:
    logger.info("Comparisons of tokenizers cannot be kept in %s: %s", directory, error)
