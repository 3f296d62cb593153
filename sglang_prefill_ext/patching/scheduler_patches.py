"""Changes to SGLang's scheduler, its memory for K/V, and layers and experts of models; part of
`table.PATCHES`."""

from __future__ import annotations

from functools import partial

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_HOOKS = "sglang_prefill_ext.border.scheduler"
_SCHEDULER_HOOKS = f"{_HOOKS}.scheduler_hooks"
_MODEL_HOOKS = "sglang_prefill_ext.border.model"
_MANAGERS = "sglang.srt.managers"
_SCHEDULER = f"{_MANAGERS}.scheduler.Scheduler"
_TRITON_EXPERTS = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe"

_around = partial(Patch, kind=Kind.AROUND, group=Group.SCHEDULER)
_after = partial(Patch, kind=Kind.AFTER, group=Group.SCHEDULER)

SCHEDULER_PATCHES: tuple[Patch, ...] = (
    _after(
        id="P10",
        target=f"{_SCHEDULER}.init_request_dispatcher",
        hook=f"{_SCHEDULER_HOOKS}:attach_runtime",
        why="Packed requests would have no handler, and pauses and weight updates would not wait "
        "for them. Embeddings would crash a scheduler whose model takes none.",
        relies_on="self._request_dispatcher TypeBasedDispatcher PauseGenerationReqInput "
        "BeginWeightUpdateReqInput EndWeightUpdateReqInput UpdateWeightFromDiskReqInput "
        "UpdateWeightsFromDistributedReqInput UpdateWeightsFromIPCReqInput "
        "UpdateWeightsFromTensorReqInput ReleaseMemoryOccupationReqInput "
        "TokenizedGenerateReqInput TokenizedEmbeddingReqInput BatchTokenizedGenerateReqInput "
        "BatchTokenizedEmbeddingReqInput",
        diffs="0003 0004 0030",
    ),
    _around(
        id="P11",
        target=f"{_SCHEDULER}.get_next_batch_to_run",
        hook=f"{_SCHEDULER_HOOKS}:step_then_next_batch",
        why="No event loop would run packed requests.",
        relies_on="NextBatchPlan",
        diffs="0004",
    ),
    _around(
        id="P12",
        target=f"{_SCHEDULER}.is_fully_idle",
        hook=f"{_SCHEDULER_HOOKS}:is_fully_idle",
        why="Cache flushes, weight updates and sleep would not wait for packed work.",
        relies_on="self.running_batch.is_empty",
        diffs="0004",
    ),
    _after(
        id="P13",
        target=f"{_SCHEDULER}.abort_request",
        hook=f"{_SCHEDULER_HOOKS}:abort_packed",
        why="The packed request of a client that left would still run.",
        relies_on="recv_req.rid recv_req.abort_all",
        diffs="0004",
    ),
    _after(
        id="P14",
        target=f"{_MANAGERS}.scheduler_components.load_inquirer.SchedulerLoadInquirer.get_loads",
        hook=f"{_SCHEDULER_HOOKS}:add_packed_load",
        why="Load balancing and reports would take a replica full of packed work for idle.",
        relies_on="LoadSnapshot num_waiting_reqs num_total_tokens",
        diffs="0004",
    ),
    _after(
        id="P15",
        target=f"{_MANAGERS}.scheduler_components.request_receiver.SchedulerRequestReceiver"
        "._pull_raw_reqs",
        hook=f"{_SCHEDULER_HOOKS}:add_deadline_check",
        why="Late requests would be computed. By their own clocks, ranks would drop different "
        "ones, and hang.",
        relies_on="self.recv_from_tokenizer recv_reqs",
        diffs="0014",
    ),
    _around(
        id="P16",
        target=f"{_SCHEDULER}.init_schedule_policy",
        hook=f"{_HOOKS}.srpt_policy:choose_policy",
        why="SGLang's scheduler would exit at --schedule-policy srpt.",
        relies_on="self.policy SchedulePolicy self.schedule_policy self.tree_cache "
        "self.enable_hierarchical_cache",
        diffs="0015",
    ),
    _around(
        id="P17",
        target="sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
        ".get_next_disagg_prefill_batch_to_run",
        hook=f"{_SCHEDULER_HOOKS}:step_then_next_prefill",
        why="As without P11, on a prefill server of a disaggregated pair.",
        relies_on="NextBatchPlan",
        diffs="0004",
    ),
    _after(
        id="P47",
        target="sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"
        "._profile_available_bytes",
        hook="sglang_prefill_ext.border.dp_controller.several_schedulers:share_room",
        why="The first of several schedulers would take all memory for K/V.",
        relies_on="available_gpu_memory rest_memory pre_model_load_memory get_schedule",
        diffs="0020",
    ),
    _after(
        id="P76",
        target="sglang.srt.session.session_controller.Session.__init__",
        hook=f"{_HOOKS}.stock_requests:keep_turns",
        why="Clients that replace all turns of a session would end the scheduler.",
        relies_on="self.req_nodes",
        diffs="0047",
    ),
    _after(
        id="P77",
        target="sglang.srt.session.session_controller.Session.create_req",
        hook=f"{_HOOKS}.stock_requests:leave_session",
        why="Clients that send turns to a busy streaming session would end the scheduler.",
        relies_on="self.streaming new_req.set_finish_with_abort",
        diffs="0049",
    ),
    _after(
        id="P78",
        target="sglang.srt.model_executor.forward_batch_info.ForwardBatch."
        "_maybe_init_non_generation_fields",
        hook=f"{_HOOKS}.stock_requests:type_all_tokens",
        why="Pairs of texts beside single texts or health checks would end the scheduler of a "
        "cross encoder.",
        relies_on="self.token_type_ids batch.reqs",
        diffs="0050",
    ),
    _around(
        id="P61",
        target=f"{_TRITON_EXPERTS}._prepare_fused_moe_run",
        hook=f"{_MODEL_HOOKS}.expert_hook:with_chosen_block",
        why="SGLang would choose the block of experts by the number of tokens alone.",
        relies_on="hidden_states.shape hidden_states.dtype try_get_optimal_moe_config "
        "moe_align_block_size config",
        diffs="0033 0034",
    ),
    _around(
        id="P62",
        target=f"{_TRITON_EXPERTS}.invoke_fused_moe_kernel",
        hook=f"{_MODEL_HOOKS}.expert_hook:with_both_entries",
        why="The block would have to be chosen before the tokens of a layer are routed.",
        relies_on="sorted_token_ids expert_ids num_tokens_post_padded config",
        diffs="0034",
    ),
    _around(
        id="P63",
        # Under the name that SGLang calls; `border.patches` sees to that of the module behind.
        target="sglang.srt.layers.deep_gemm_wrapper.get_contiguous_layout_alignment",
        hook=f"{_MODEL_HOOKS}.alignment:with_chosen_alignment",
        why="On Hopper, DeepGEMM would always pad each expert to 128 rows.",
        relies_on="deep_gemm.get_mk_alignment_for_contiguous_layout",
        diffs="0035",
    ),
    *(
        _around(
            id=patch_id,
            target=f"sglang.srt.models.{target}.forward",
            hook=f"{_MODEL_HOOKS}.packed_backend:convolved",
            why="A packed forward has no slot in the pool of states that these layers read.",
            relies_on="self.in_proj self.out_proj self.conv_weight self.conv_bias self.layer_idx",
            diffs="0040",
            spares=spared,
        )
        for patch_id, target, spared in (
            # Encoders, whose layers read no states, are not packed.
            ("P74", "lfm2.Lfm2ShortConv", "sglang.srt.models.lfm2.Lfm2BidirectionalShortConv"),
            ("P75", "lfm2_moe.Lfm2MoeShortConv", ""),
        )
    ),
)
