"""Comparisons on disk: a tokenizer is compared once on a machine, not at every start."""

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
    """Name what a comparison is about: the tokenizer, and the versions of all that took part."""
    digest = hashlib.sha256(json.encode())
    for each in versions:
        digest.update(f"\0{each}".encode())
    return digest.hexdigest()


def processor() -> str:
    """What this machine's processor can do, by which libraries choose their code.

    A home directory may be shared with machines of another kind.
    """
    names = ("model name", "flags", "Features")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    known = sorted({line for line in lines if line.startswith(names)})
    return "\n".join([platform.machine(), platform.processor(), *known])


def remembered(directory: Path, key: str, compare: Callable[[], Comparison]) -> Comparison:
    """Return the comparison on disk, else compare and leave it there.

    Of several processes one compares, and the others wait for it. Without a usable directory each
    compares for itself.

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
    """Have a directory that nobody else writes to: who plants one has texts encoded wrongly.

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
    partly.replace(file)  # whole, or not at all


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _log_useless(directory: Path, error: OSError) -> None:
    logger.info("Comparisons of tokenizers cannot be kept in %s: %s", directory, error)
