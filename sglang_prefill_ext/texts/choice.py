"""Which library encodes: the fastest of those that are wanted, there, and equal.

Comparisons are kept on disk: a tokenizer is compared once on a machine, not at every start.
"""

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
from importlib.metadata import version
from pathlib import Path

import msgspec

from sglang_prefill_ext.config import TokenizerChoice
from sglang_prefill_ext.texts import libraries, sample_texts
from sglang_prefill_ext.texts.comparison import Comparison, us_per_text
from sglang_prefill_ext.texts.comparison_process import (
    LONGEST_S,
    NotComparedError,
    compare_in_child,
    wait_a_little,
)
from sglang_prefill_ext.texts.libraries import Encoder

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


GATE_TEXTS = 100_000


class Choice:
    """The libraries that are wanted, compared one after the other.

    This takes seconds where no comparison is remembered.

    Args:
        json: of the tokenizer.
        reference: Hugging Face's; it is chosen where no other passes, or none is faster.
        directory: of the comparisons.
        count: texts to compare.
        compare: compares a library on these.

    Attributes:
        best: the encoder to use.
        comparisons: on each library.
        speeds: time (µs) for a text of an ordinary request, of each that may be used.
    """

    def __init__(
        self,
        choice: TokenizerChoice,
        json: str,
        reference: Encoder,
        directory: Path,
        count: int = GATE_TEXTS,
        compare: Callable[[TokenizerChoice, str, int], Comparison] = compare_in_child,
    ) -> None:
        self._json, self._directory, self._count, self._compare = json, directory, count, compare
        self.best = reference
        self.comparisons: dict[str, Comparison] = {}
        self.speeds = {reference.name: us_per_text(reference)}
        for library in libraries.candidates(choice):
            self.comparisons[str(library)] = self._consider(library, choice == TokenizerChoice.AUTO)

    def _consider(self, library: TokenizerChoice, if_faster: bool) -> Comparison:
        comparison = self._comparison_of(library)
        if comparison.difference:
            # Where nothing was compared, it just does not know such tokenizers.
            level = logging.WARNING if comparison.texts else logging.INFO
            logger.log(
                level, "Tokenizer library %s is not used: %s", library, comparison.difference
            )
            return comparison
        logger.info("Tokenizer library %s: equal on %d texts", library, comparison.texts)
        encoder = libraries.load(library, self._json)
        self.speeds[str(library)] = speed = us_per_text(encoder)
        if not if_faster or speed < self.speeds[self.best.name]:
            self.best = encoder
        return comparison

    def _comparison_of(self, library: TokenizerChoice) -> Comparison:
        versions = (library, version(library), version("tokenizers"))
        key = key_of(
            self._json, *versions, str(sample_texts.EDITION), str(self._count), processor()
        )
        try:
            return remembered(
                self._directory, key, lambda: self._compare(library, self._json, self._count)
            )
        except NotComparedError as error:  # nothing is remembered: the next start tries again
            return Comparison(f"not compared: {error}")
