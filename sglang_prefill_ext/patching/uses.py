"""What hooks use of SGLang unchanged, read from the lock.

Pure data: importing this module imports nothing heavy.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from sglang_prefill_ext.patching.scan import LIBRARIES, is_of
from sglang_prefill_ext.patching.spec import Use

PATH = Path(__file__).with_name("uses.lock.json")


def load(path: Path = PATH) -> tuple[Use, ...]:
    """Read a lock.

    Raises:
        OSError: the file, which comes with the package, cannot be read.
        ValueError: the file is not a lock, as after a merge with conflicts.
    """
    locked = json.loads(path.read_text()).items()
    return tuple(msgspec.convert({"target": target, **entry}, Use) for target, entry in locked)


_LOCKED = load()

LIBRARY_USES = tuple(use for use in _LOCKED if is_of(use.target, LIBRARIES))
"""Uses of attention libraries. A missing library is no mismatch; `doctor` reports differences."""

USES = tuple(use for use in _LOCKED if use not in LIBRARY_USES)
"""All other uses, sorted by target: a method comes right after its class."""
