"""What LoRA adapters in packed forwards use of SGLang; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_MANAGER = "sglang.srt.lora.lora_manager.LoRAManager"
_TOKENIZER_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"

LORA_USES = (
    Use(
        id="U290",
        target=_MANAGER,
        group=Group.SCHEDULER,
        used_by=("border.model.adapters", "border.model.capability"),
        why="which adapters there are, and what they change",
        members=("loras", "device", "lora_backend", "target_modules"),
    ),
    Use(
        id="U291",
        target=f"{_MANAGER}.fetch_new_loras",
        group=Group.SCHEDULER,
        used_by=("border.model.adapters",),
        why="brings an adapter into the pool",
        signature="(self, new_loras, running_loras=set())",
    ),
    Use(
        id="U292",
        target=f"{_MANAGER}.prepare_lora_batch",
        group=Group.SCHEDULER,
        used_by=("border.model.adapters",),
        why="tells the layers which tokens have which adapter",
        signature="(self, forward_batch)",
    ),
    Use(
        id="U293",
        target=f"{_MANAGER}.reset_lora_batch",
        group=Group.SCHEDULER,
        used_by=("border.model.adapters",),
        why="lets the layers run without adapters",
        signature="(self)",
    ),
    Use(
        id="U294",
        target="sglang.srt.lora.backend.base_backend.BaseLoRABackend",
        group=Group.SCHEDULER,
        used_by=("border.model.capability",),
        why="adapters of experts, which are not packed",
        members=("is_moe_lora",),
    ),
    Use(
        id="U295",
        target="sglang.srt.utils.is_pin_memory_available",
        group=Group.SCHEDULER,
        used_by=("border.cpu.pageable",),
        why="whether host memory can be pinned here",
        signature="(device=None)",
    ),
    Use(
        id="U296",
        target=f"{_TOKENIZER_MANAGER}._validate_and_resolve_lora",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.adapter_lease",),
        why="finds the adapter that a request names, and keeps it from being unloaded",
        signature="(self, obj)",
    ),
    Use(
        id="U297",
        target="sglang.srt.lora.lora_registry.LoRARegistry.release",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.adapter_lease",),
        why="lets it be unloaded again",
        signature="(self, lora_id)",
    ),
)
