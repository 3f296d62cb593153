"""What hooks use of SGLang as it is, as locked. Pure data: importing it imports nothing heavy."""

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
        OSError: there is none; it comes with the package.
        ValueError: it is none, as after a merge with conflicts.
    """
    locked = json.loads(path.read_text()).items()
    return tuple(msgspec.convert({"target": target, **entry}, Use) for target, entry in locked)


_LOCKED = load()

LIBRARY_USES = tuple(use for use in _LOCKED if is_of(use.target, LIBRARIES))
"""What is called of attention libraries. One that is missing is no mismatch, and one that differs
is for `doctor` to tell."""

USES = tuple(use for use in _LOCKED if use not in LIBRARY_USES)
"""All other uses, sorted by target: a method comes right after its class."""
