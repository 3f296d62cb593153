"""Changes to SGLang for garbage collection, several schedulers on one device, adapters, and the
layers and experts of models; part of `table.PATCHES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_GC_CONTROL = "sglang_prefill_ext.border.gc_control"
_PAGEABLE_HOOK = "sglang_prefill_ext.border.cpu.cpu_platform:without_pinning"
_REPLICA_HOOKS = "sglang_prefill_ext.border.dp_controller.several_schedulers"

_MANAGERS = "sglang.srt.managers"
_CONTROLLER = f"{_MANAGERS}.data_parallel_controller.DataParallelController"
_CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"
_LORA = "sglang.srt.lora"
_PROCESSOR = "sglang.srt.layers.logits_processor"
_TRITON_EXPERTS = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe"

_ROUND = ("0021-control-messages-to-every-process.patch",)
_REPLICAS = ("0020-several-replicas-on-a-gpu.patch",)
_PAGEABLE = ("0019-lora-without-pinned-memory.patch",)
_WRAP = "0034-wrap-how-experts-are-launched.patch"

PROCESS_PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P43",
        target=f"{_MANAGERS}.tokenizer_manager.TokenizerManager.freeze_gc",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.tokenizer_manager.server_setup:freeze_gc",
        group=Group.FRONTEND,
        why="Garbage of the start would be frozen too. The tokenizer router and attached "
        "front ends would not freeze.",
        relies_on="FreezeGCReq gc_threshold self._dispatch_to_scheduler",
        diffs=_ROUND,
    ),
    Patch(
        id="P44",
        target=f"{_MANAGERS}.detokenizer_manager.DetokenizerManager.init_request_dispatcher",
        kind=Kind.AFTER,
        hook=f"{_GC_CONTROL}:attach_detokenizer",
        group=Group.DETOKENIZER,
        why="Detokenizers would freeze, but they would not collect before, unfreeze or report.",
        relies_on="self._request_dispatcher TypeBasedDispatcher FreezeGCReq",
        diffs=_ROUND,
    ),
    Patch(
        id="P45",
        target=f"{_MANAGERS}.multi_tokenizer_mixin.MultiTokenizerRouter"
        "._distribute_result_to_workers",
        kind=Kind.AROUND,
        hook=f"{_GC_CONTROL}:spread_to_workers",
        group=Group.FRONTEND,
        why="With several tokenizer workers, only the one that was asked would act.",
        relies_on="BaseReq self.socket_mapping.send_output",
        diffs=_ROUND,
    ),
    Patch(
        id="P46",
        target=f"{_CONTROLLER}.launch_tensor_parallel_group",
        kind=Kind.AROUND,
        hook=f"{_REPLICA_HOOKS}:start_in_turn",
        group=Group.DP_CONTROLLER,
        why="--prefill-only-schedulers would start each scheduler on a GPU of its own. All "
        "would start at once, without knowing the memory of the others.",
        relies_on="base_gpu_id mp.Process self._record_scheduler_init_infos",
        diffs=_REPLICAS,
    ),
    Patch(
        id="P47",
        target=f"{_CONFIGURATOR}._profile_available_bytes",
        kind=Kind.AFTER,
        hook=f"{_REPLICA_HOOKS}:share_room",
        group=Group.SCHEDULER,
        why="The first of several schedulers on a device would take all memory for K/V.",
        relies_on="available_gpu_memory rest_memory pre_model_load_memory get_schedule",
        diffs=_REPLICAS,
    ),
    Patch(
        id="P50",
        target=f"{_LORA}.lora_manager.LoRAManager.init_state",
        kind=Kind.AROUND,
        hook=_PAGEABLE_HOOK,
        group=Group.CPU,
        why="Memory cannot be pinned without a CUDA device, so a server with LoRA would not start.",
        relies_on="self.init_lora_modules self.update_lora_info",
        diffs=_PAGEABLE,
    ),
    Patch(
        id="P51",
        target=f"{_LORA}.backend.torch_backend.TorchNativeLoRABackend.prepare_lora_batch",
        kind=Kind.AROUND,
        hook=_PAGEABLE_HOOK,
        group=Group.CPU,
        why="As without P50, for every batch.",
        relies_on="torch.tensor self.batch_info",
        diffs=_PAGEABLE,
    ),
    Patch(
        id="P54",
        target=f"{_PROCESSOR}.LogitsProcessor._get_logits",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.cpu.cpu_platform:capped_on_host",
        group=Group.CPU,
        why="On a CPU, a model with a soft cap of its logits would answer nothing.",
        relies_on="self.final_logit_softcapping",
        diffs=("0024-soft-cap-of-logits-on-the-cpu.patch",),
    ),
    Patch(
        id="P65",
        target="sglang.srt.models.deepseek_v2.DeepseekV2AttentionMLA.dispatch_attn_forward_method",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.cpu.latent_attention:over_latents",
        group=Group.CPU,
        why="On a CPU, a model with latent attention would answer nothing.",
        relies_on="self.current_attention_backend AttentionBackendRegistry",
        diffs=("0037-latent-attention-on-torch-native.patch",),
    ),
    *(
        Patch(
            id=patch_id,
            target=f"sglang.{target}",
            kind=Kind.AROUND,
            hook=f"sglang_prefill_ext.border.cpu.delta_rule:{hook}",
            group=Group.CPU,
            why=f"On a CPU, {symptom}.",
            relies_on=names,
            diffs=("0038-gated-delta-rule-on-torch.patch",),
        )
        for patch_id, target, hook, symptom, names in (
            (
                "P66",
                "srt.layers.attention.linear.gdn_backend.GDNAttnBackend.forward_extend",
                "carried",
                "a model with a gated delta rule would answer nothing",
                "self.req_to_token_pool self.forward_metadata",
            ),
            (
                "P67",
                "srt.layers.attention.linear.gdn_backend.GDNAttnBackend.forward_decode",
                "carried",
                "such a model would generate nothing",
                "self.req_to_token_pool self.forward_metadata",
            ),
            (
                "P68",
                "kernels.ops.attention.fla.layernorm_gated.RMSNorm.forward",
                "gated_norm",
                "its gated norms would fail",
                "self.weight self.eps self.activation self.group_size self.norm_before_gate",
            ),
            (
                "P69",
                "kernels.ops.attention.triton_gdn_fused_proj."
                "fused_qkvzba_split_reshape_cat_contiguous",
                "divided",
                "its projections would fail",
                "mixed_qkvz mixed_ba",
            ),
            (
                "P70",
                "kernels.ops.elementwise.elementwise.fused_sigmoid_mul",
                "gated",
                "its gated attention would fail",
                "attn_output gate",
            ),
        )
    ),
    *(
        Patch(
            id=patch_id,
            target=f"sglang.srt.{target}",
            kind=Kind.AROUND,
            hook=f"sglang_prefill_ext.border.cpu.{hook}",
            group=Group.CPU,
            why=f"On a CPU, {symptom}.",
            relies_on=names,
            diffs=("0039-state-spaces-and-convolutions-on-torch.patch",),
        )
        for patch_id, target, hook, symptom, names in (
            (
                "P71",
                "layers.attention.mamba.mamba.MambaMixer2.forward",
                "state_space:mixed",
                "a model with state spaces (Mamba-2) would answer nothing",
                "self.in_proj self.conv1d self.norm self.out_proj metadata.mixed_metadata "
                "layer_cache.temporal",
            ),
            (
                "P72",
                "layers.attention.mamba.causal_conv1d.causal_conv1d_fn",
                "convolution:of_sequences",
                "a model with short convolutions (LFM2) would answer nothing",
                "query_start_loc conv_states has_initial_state",
            ),
            (
                "P73",
                "layers.attention.mamba.causal_conv1d.causal_conv1d_update",
                "convolution:of_tokens",
                "such a model would generate nothing",
                "conv_state_indices",
            ),
        )
    ),
    *(
        Patch(
            id=patch_id,
            target=f"sglang.srt.models.{target}.forward",
            kind=Kind.AROUND,
            hook="sglang_prefill_ext.border.model.recurrent.short_conv:convolved",
            group=Group.SCHEDULER,
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
    Patch(
        id="P61",
        target=f"{_TRITON_EXPERTS}._prepare_fused_moe_run",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.model.expert_hook:with_chosen_block",
        group=Group.SCHEDULER,
        why="SGLang would choose the block of rows of experts by the number of tokens alone.",
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
        why="The block of rows would have to be chosen before the tokens of a layer are routed.",
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
        why="On Hopper, DeepGEMM would always pad the rows of each expert to 128.",
        relies_on="deep_gemm.get_mk_alignment_for_contiguous_layout",
        diffs=("0035-choose-the-alignment-of-deep-gemm.patch",),
    ),
)
