"""The one list of what this package changes in SGLang. Pure data: importing it imports nothing.

``patches.lock.json`` has the signature of each target, and fingerprints of its body in the verified
releases; `patches.tools.lock` writes it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from sglang_prefill_ext.patching.cpu_patches import CPU_PATCHES
from sglang_prefill_ext.patching.flag_patches import FLAG_PATCHES
from sglang_prefill_ext.patching.frontend_patches import FRONTEND_PATCHES
from sglang_prefill_ext.patching.process_patches import PROCESS_PATCHES
from sglang_prefill_ext.patching.scheduler_patches import SCHEDULER_PATCHES
from sglang_prefill_ext.patching.spec import Patch

LOCK = Path(__file__).with_name("patches.lock.json")
_LOCKED = json.loads(LOCK.read_text())
_ALL = sorted(
    (*FLAG_PATCHES, *SCHEDULER_PATCHES, *FRONTEND_PATCHES, *PROCESS_PATCHES, *CPU_PATCHES),
    key=lambda patch: patch.id,
)
PATCHES: tuple[Patch, ...] = tuple(replace(each, **_LOCKED.get(each.id, {})) for each in _ALL)
