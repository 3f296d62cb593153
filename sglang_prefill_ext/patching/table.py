"""The one list of what this package changes in SGLang. Pure data: importing it imports nothing."""

from __future__ import annotations

from sglang_prefill_ext.patching.expert_patches import EXPERT_PATCHES
from sglang_prefill_ext.patching.flag_patches import FLAG_PATCHES
from sglang_prefill_ext.patching.frontend_patches import FRONTEND_PATCHES
from sglang_prefill_ext.patching.process_patches import PROCESS_PATCHES
from sglang_prefill_ext.patching.scheduler_patches import SCHEDULER_PATCHES
from sglang_prefill_ext.patching.spec import Patch
from sglang_prefill_ext.patching.text_patches import TEXT_PATCHES

PATCHES: tuple[Patch, ...] = (
    *FLAG_PATCHES,
    *SCHEDULER_PATCHES,
    *FRONTEND_PATCHES,
    *PROCESS_PATCHES,
    *TEXT_PATCHES,
    *EXPERT_PATCHES,
)
