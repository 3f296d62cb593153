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
        signature="(hidden_states, w1, w2, topk_ids, *, use_fp8_w8a8, use_int8_w8a8, "
        "use_int8_w8a16, use_int4_w4a16, per_channel_quant, block_shape)",
        relies_on="hidden_states.shape hidden_states.dtype try_get_optimal_moe_config "
        "moe_align_block_size config",
        fingerprints={"0.5.23": "a1f81cc02666dd4b53dd2166c36a0139b9a01df5bef295b0f5ede9f6aafc4997"},
        diffs=("0033-choose-the-block-of-experts.patch", _WRAP),
    ),
    Patch(
        id="P62",
        target=f"{_TRITON_EXPERTS}.invoke_fused_moe_kernel",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.model.expert_pair:with_both_entries",
        group=Group.SCHEDULER,
        why="The block of rows would have to be known before the tokens of a layer are routed.",
        signature="(A, B, bias, C, A_scale, B_scale, B_zp, topk_weights, topk_ids, "
        "sorted_token_ids, expert_ids, num_tokens_post_padded, mul_routed_weight, top_k, config, "
        "compute_type, use_fp8_w8a8, use_int8_w8a8, use_int8_w8a16, use_int4_w4a16, "
        "per_channel_quant, block_shape=None, no_combine=False, a_use_tma=False, b_use_tma=False, "
        "c_sorted=False, filter_expert=True, fuse_sum_all_reduce=False, router_topk=1, "
        "fuse_add_to_output=False, add_output_mask=None, mask_output=False, "
        "lora_preserve_base=False, fuse_swiglu=False, a_output_slices=1)",
        relies_on="sorted_token_ids expert_ids num_tokens_post_padded config",
        fingerprints={"0.5.23": "06627f1d1462222f9770d687859603c066dfcb6f705872f49a21be5c0cacbc61"},
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
        signature="(expected_m, num_groups)",
        relies_on="deep_gemm.get_mk_alignment_for_contiguous_layout",
        fingerprints={"0.5.23": "6aec3075bee026b039ee35219857878f00c4730f9f7ef113a171e8345a914024"},
        diffs=("0035-choose-the-alignment-of-deep-gemm.patch",),
    ),
)
