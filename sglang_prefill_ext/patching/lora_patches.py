"""What is changed in SGLang's LoRA; a part of `table.PATCHES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_HOOK = "sglang_prefill_ext.border.cpu.pageable:without_pinning"
_LORA = "sglang.srt.lora"

_PAGEABLE = ("0019-lora-without-pinned-memory.patch",)

# What the diff adds to SGLang: once a release has it, the hook is not needed.
_HAS_PAGEABLE = (f"{_LORA}.utils.pinned_if_available",)

LORA_PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P50",
        target=f"{_LORA}.lora_manager.LoRAManager.init_state",
        kind=Kind.AROUND,
        hook=_HOOK,
        group=Group.SCHEDULER,
        why="Where memory cannot be pinned, as without a CUDA device, a server with LoRA would not "
        "start. Elsewhere the hook does nothing.",
        signature="(self, max_lora_rank=None, target_modules=None, lora_paths=None)",
        relies_on=("self.init_lora_modules", "self.update_lora_info"),
        fingerprints={"0.5.23": "ce3be55bab9dc433e2bfd554b8591def85bae58b9cb50ad48dc3a917159bfaba"},
        diffs=_PAGEABLE,
        remove_when=_HAS_PAGEABLE,
    ),
    Patch(
        id="P51",
        target=f"{_LORA}.backend.torch_backend.TorchNativeLoRABackend.prepare_lora_batch",
        kind=Kind.AROUND,
        hook=_HOOK,
        group=Group.SCHEDULER,
        why="Likewise for every batch of such a server.",
        signature="(self, forward_batch, weight_indices, lora_ranks, scalings, use_cuda_graph, "
        "use_prefill_cuda_graph=False)",
        relies_on=("torch.tensor", "self.batch_info"),
        fingerprints={"0.5.23": "eb509e0501107fea465972e7ca2fcfefe52cb7634b566dbfb50bea30d4379941"},
        diffs=_PAGEABLE,
        remove_when=_HAS_PAGEABLE,
    ),
)
