"""Changes to SGLang for garbage collection, several schedulers on one device, and the layers and
experts of models; part of `table.PATCHES`."""

from __future__ import annotations

from functools import partial

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_GC_CONTROL = "sglang_prefill_ext.border.gc_control"
_REPLICA_HOOKS = "sglang_prefill_ext.border.dp_controller.several_schedulers"

_MANAGERS = "sglang.srt.managers"
_CONTROLLER = f"{_MANAGERS}.data_parallel_controller.DataParallelController"
_CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"
_TRITON_EXPERTS = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe"

_ROUND = ("0021-control-messages-to-every-process.patch",)
_REPLICAS = ("0020-several-replicas-on-a-gpu.patch",)
_WRAP = "0034-wrap-how-experts-are-launched.patch"

_around = partial(Patch, kind=Kind.AROUND, group=Group.SCHEDULER)
_after = partial(Patch, kind=Kind.AFTER, group=Group.SCHEDULER)

PROCESS_PATCHES: tuple[Patch, ...] = (
    _around(
        id="P43",
        target=f"{_MANAGERS}.tokenizer_manager.TokenizerManager.freeze_gc",
        hook="sglang_prefill_ext.border.tokenizer_manager.server_setup:freeze_gc",
        group=Group.FRONTEND,
        why="Garbage of the start would be frozen too. The tokenizer router and attached "
        "front ends would not freeze.",
        relies_on="FreezeGCReq gc_threshold self._dispatch_to_scheduler",
        diffs=_ROUND,
    ),
    _after(
        id="P44",
        target=f"{_MANAGERS}.detokenizer_manager.DetokenizerManager.init_request_dispatcher",
        hook=f"{_GC_CONTROL}:attach_detokenizer",
        group=Group.DETOKENIZER,
        why="Detokenizers would freeze, but they would not collect before, unfreeze or report.",
        relies_on="self._request_dispatcher TypeBasedDispatcher FreezeGCReq",
        diffs=_ROUND,
    ),
    _around(
        id="P45",
        target=f"{_MANAGERS}.multi_tokenizer_mixin.MultiTokenizerRouter"
        "._distribute_result_to_workers",
        hook=f"{_GC_CONTROL}:spread_to_workers",
        group=Group.FRONTEND,
        why="With several tokenizer workers, only the one that was asked would act.",
        relies_on="BaseReq self.socket_mapping.send_output",
        diffs=_ROUND,
    ),
    _around(
        id="P46",
        target=f"{_CONTROLLER}.launch_tensor_parallel_group",
        hook=f"{_REPLICA_HOOKS}:start_in_turn",
        group=Group.DP_CONTROLLER,
        why="--prefill-only-schedulers would start each scheduler on a GPU of its own. All "
        "would start at once, without knowing the memory of the others.",
        relies_on="base_gpu_id mp.Process self._record_scheduler_init_infos",
        diffs=_REPLICAS,
    ),
    _after(
        id="P47",
        target=f"{_CONFIGURATOR}._profile_available_bytes",
        hook=f"{_REPLICA_HOOKS}:share_room",
        why="The first of several schedulers on a device would take all memory for K/V.",
        relies_on="available_gpu_memory rest_memory pre_model_load_memory get_schedule",
        diffs=_REPLICAS,
    ),
    *(
        _around(
            id=patch_id,
            target=f"sglang.srt.models.{target}.forward",
            hook="sglang_prefill_ext.border.model.recurrent.short_conv:convolved",
            why="A packed forward has no slot in the pool of states, which these layers read.",
            relies_on="self.in_proj self.out_proj self.conv_weight self.conv_bias self.layer_idx",
            diffs=("0040-short-convolutions-through-the-backend.patch",),
            spares=spared,
        )
        for patch_id, target, spared in (
            # Encoders, whose layers read no states, are not packed.
            ("P74", "lfm2.Lfm2ShortConv", "sglang.srt.models.lfm2.Lfm2BidirectionalShortConv"),
            ("P75", "lfm2_moe.Lfm2MoeShortConv", ""),
        )
    ),
    _around(
        id="P61",
        target=f"{_TRITON_EXPERTS}._prepare_fused_moe_run",
        hook="sglang_prefill_ext.border.model.expert_hook:with_chosen_block",
        why="SGLang would choose the block of rows of experts by the number of tokens alone.",
        relies_on="hidden_states.shape hidden_states.dtype try_get_optimal_moe_config "
        "moe_align_block_size config",
        diffs=("0033-choose-the-block-of-experts.patch", _WRAP),
    ),
    _around(
        id="P62",
        target=f"{_TRITON_EXPERTS}.invoke_fused_moe_kernel",
        hook="sglang_prefill_ext.border.model.expert_pair:with_both_entries",
        why="The block of rows would have to be chosen before the tokens of a layer are routed.",
        relies_on="sorted_token_ids expert_ids num_tokens_post_padded config",
        diffs=(_WRAP,),
    ),
    _around(
        id="P63",
        # Under the name that SGLang calls; `border.patches` sees to that of the module behind.
        target="sglang.srt.layers.deep_gemm_wrapper.get_contiguous_layout_alignment",
        hook="sglang_prefill_ext.border.model.alignment_hook:with_chosen_alignment",
        why="On Hopper, DeepGEMM would always pad the rows of each expert to 128.",
        relies_on="deep_gemm.get_mk_alignment_for_contiguous_layout",
        diffs=("0035-choose-the-alignment-of-deep-gemm.patch",),
    ),
)
