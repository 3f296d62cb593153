"""What is changed in SGLang for the experts of mixtures; a part of `table.PATCHES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_TRITON_EXPERTS = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe"
_WRAP = "0034-wrap-how-experts-are-launched.patch"

EXPERT_PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P61",
        target=f"{_TRITON_EXPERTS}._prepare_fused_moe_run",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.model.expert_hook:with_chosen_block",
        group=Group.SCHEDULER,
        why="The block of rows of experts would be chosen by the number of tokens alone.",
        relies_on="hidden_states.shape hidden_states.dtype try_get_optimal_moe_config "
        "moe_align_block_size config",
        diffs=("0033-choose-the-block-of-experts.patch", _WRAP),
    ),
    Patch(
        id="P62",
        target=f"{_TRITON_EXPERTS}.invoke_fused_moe_kernel",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.model.expert_pair:with_both_entries",
        group=Group.SCHEDULER,
        why="The block of rows would have to be known before the tokens of a layer are routed.",
        relies_on="sorted_token_ids expert_ids num_tokens_post_padded config",
        diffs=(_WRAP,),
    ),
    Patch(
        id="P63",
        # Under the name that SGLang calls; `border.patches` sees to that of the module behind.
        target="sglang.srt.layers.deep_gemm_wrapper.get_contiguous_layout_alignment",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.model.alignment_hook:with_chosen_alignment",
        group=Group.SCHEDULER,
        why="On Hopper DeepGEMM would always fill up the rows of each expert to 128.",
        relies_on="deep_gemm.get_mk_alignment_for_contiguous_layout",
        diffs=("0035-choose-the-alignment-of-deep-gemm.patch",),
    ),
)
