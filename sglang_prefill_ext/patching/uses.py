"""What hooks use of SGLang as it is, as locked. Pure data: importing it imports nothing heavy."""

from __future__ import annotations

from sglang_prefill_ext.patching import lock
from sglang_prefill_ext.patching.scan import LIBRARIES, is_of

_LOCKED = lock.load()

LIBRARY_USES = tuple(use for use in _LOCKED if is_of(use.target, LIBRARIES))
"""What is called of attention libraries. One that is missing is no mismatch, and one that differs
is for `doctor` to tell."""

USES = tuple(use for use in _LOCKED if use not in LIBRARY_USES)
"""All other uses, sorted by target: a method comes right after its class."""
