"""What this package changes in SGLang, and what it uses as it is. Pure data; nothing heavy.

``patches.lock.json`` has the signature of each target, and fingerprints of its body in the verified
releases; ``uses.lock.json`` has the uses. `patches.tools.lock` writes both.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec

from sglang_prefill_ext.patching.cpu_patches import CPU_PATCHES
from sglang_prefill_ext.patching.frontend_patches import FRONTEND_PATCHES
from sglang_prefill_ext.patching.process_patches import PROCESS_PATCHES
from sglang_prefill_ext.patching.scan import LIBRARIES, is_of
from sglang_prefill_ext.patching.scheduler_patches import SCHEDULER_PATCHES
from sglang_prefill_ext.patching.spec import Patch, Use

LOCK = Path(__file__).with_name("patches.lock.json")
USES_LOCK = Path(__file__).with_name("uses.lock.json")
_LOCKED = json.loads(LOCK.read_text())
_ALL = sorted(
    (*PROCESS_PATCHES, *FRONTEND_PATCHES, *SCHEDULER_PATCHES, *CPU_PATCHES),
    key=lambda patch: patch.id,
)
PATCHES: tuple[Patch, ...] = tuple(replace(each, **_LOCKED.get(each.id, {})) for each in _ALL)


def load_uses(path: Path = USES_LOCK) -> tuple[Use, ...]:
    """Read a lock of uses, sorted by target: a method comes right after its class.

    Raises:
        ValueError: the file is not a lock, as after a merge with conflicts.
    """
    locked = json.loads(path.read_text()).items()
    return tuple(msgspec.convert({"target": target, **entry}, Use) for target, entry in locked)


_USED = load_uses()

LIBRARY_USES = tuple(use for use in _USED if is_of(use.target, LIBRARIES))
"""Uses of attention libraries. A missing library is no mismatch; `doctor` reports differences."""

USES = tuple(use for use in _USED if use not in LIBRARY_USES)
