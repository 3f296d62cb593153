"""Verdicts on disk: a tokenizer is compared once on a machine, not at every start."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sglang_prefill_ext.tokenization.gate import Verdict

logger = logging.getLogger(__name__)

_DECODER = msgspec.json.Decoder(Verdict)


def cache_directory() -> Path:
    """Where this user's verdicts are: below ``$XDG_CACHE_HOME``, or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sglang-prefill-ext" / "tokenizers"


def key_of(json: str, *versions: str) -> str:
    """Name what a verdict is about: the tokenizer, and the versions of all that took part."""
    digest = hashlib.sha256(json.encode())
    for each in versions:
        digest.update(f"\0{each}".encode())
    return digest.hexdigest()


def remembered(directory: Path, key: str, judge: Callable[[], Verdict]) -> Verdict:
    """Return the verdict on disk, else judge and leave it there.

    Of several processes one judges, and the others wait for it. Without a usable directory each
    judges for itself.
    """
    file = directory / f"{key}.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(file.with_suffix(".lock")):
            return _read(file) or _written(file, judge())
    except OSError as error:
        logger.info("Verdicts on tokenizers cannot be kept in %s: %s", directory, error)
        return judge()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(file: Path) -> Verdict | None:
    try:
        return _DECODER.decode(file.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):  # never written, or by another version
        return None


def _written(file: Path, verdict: Verdict) -> Verdict:
    partly = file.with_suffix(".part")
    partly.write_bytes(msgspec.json.encode(verdict))
    partly.replace(file)  # whole, or not at all
    return verdict
