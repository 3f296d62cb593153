"""Changes to SGLang's scheduler; part of `table.PATCHES`."""

from __future__ import annotations

from functools import partial

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_HOOKS = "sglang_prefill_ext.border.scheduler"
_SCHEDULER_HOOKS = f"{_HOOKS}.scheduler_hooks"
_MANAGERS = "sglang.srt.managers"
_SCHEDULER = f"{_MANAGERS}.scheduler.Scheduler"

_EMBEDS = ("0030-refuse-embeddings-that-end-the-scheduler.patch",)
_MESSAGES = ("0003-plugin-message-types.patch",)
_OUT_OF_BAND = ("0004-out-of-band-work.patch",)

_around = partial(Patch, kind=Kind.AROUND, group=Group.SCHEDULER)
_after = partial(Patch, kind=Kind.AFTER, group=Group.SCHEDULER)

SCHEDULER_PATCHES: tuple[Patch, ...] = (
    _after(
        id="P10",
        target=f"{_SCHEDULER}.init_request_dispatcher",
        hook=f"{_SCHEDULER_HOOKS}:attach_runtime",
        why="Packed requests would have no handler. Pauses and weight updates would not wait "
        "for packed forwards. Embeddings would crash a scheduler whose model takes none.",
        relies_on="self._request_dispatcher TypeBasedDispatcher PauseGenerationReqInput "
        "BeginWeightUpdateReqInput EndWeightUpdateReqInput UpdateWeightFromDiskReqInput "
        "UpdateWeightsFromDistributedReqInput UpdateWeightsFromIPCReqInput "
        "UpdateWeightsFromTensorReqInput ReleaseMemoryOccupationReqInput "
        "TokenizedGenerateReqInput TokenizedEmbeddingReqInput BatchTokenizedGenerateReqInput "
        "BatchTokenizedEmbeddingReqInput",
        diffs=_MESSAGES + _OUT_OF_BAND + _EMBEDS,
    ),
    _around(
        id="P11",
        target=f"{_SCHEDULER}.get_next_batch_to_run",
        hook=f"{_SCHEDULER_HOOKS}:step_then_next_batch",
        why="Packed requests would wait for ever: nothing in the event loops would run them.",
        relies_on="NextBatchPlan",
        diffs=_OUT_OF_BAND,
    ),
    _around(
        id="P12",
        target=f"{_SCHEDULER}.is_fully_idle",
        hook=f"{_SCHEDULER_HOOKS}:is_fully_idle",
        why="Cache flushes, weight updates and sleep would start while packed work is running.",
        relies_on="self.running_batch.is_empty",
        diffs=_OUT_OF_BAND,
    ),
    _after(
        id="P13",
        target=f"{_SCHEDULER}.abort_request",
        hook=f"{_SCHEDULER_HOOKS}:abort_packed",
        why="Aborts search only stock queues, so the packed request of a client that left "
        "would still run.",
        relies_on="recv_req.rid recv_req.abort_all",
        diffs=_OUT_OF_BAND,
    ),
    _after(
        id="P14",
        target=f"{_MANAGERS}.scheduler_components.load_inquirer.SchedulerLoadInquirer.get_loads",
        hook=f"{_SCHEDULER_HOOKS}:add_packed_load",
        why="Load balancing and load reports would see a replica full of packed work as idle.",
        relies_on="LoadSnapshot num_waiting_reqs num_total_tokens",
        diffs=_OUT_OF_BAND,
    ),
    _after(
        id="P15",
        target=f"{_MANAGERS}.scheduler_components.request_receiver.SchedulerRequestReceiver"
        "._pull_raw_reqs",
        hook=f"{_SCHEDULER_HOOKS}:add_deadline_check",
        why="Late requests would be computed. Ranks cannot drop them by their own clocks: "
        "they would drop different ones, and hang.",
        relies_on="self.recv_from_tokenizer recv_reqs",
        diffs=("0014-hooks-on-pulled-requests.patch",),
    ),
    _around(
        id="P16",
        target=f"{_SCHEDULER}.init_schedule_policy",
        hook=f"{_HOOKS}.srpt_policy:choose_policy",
        why="SGLang's scheduler would exit, because it does not know --schedule-policy srpt.",
        relies_on="self.policy SchedulePolicy self.schedule_policy self.tree_cache "
        "self.enable_hierarchical_cache",
        diffs=("0015-srpt-schedule-policy.patch",),
    ),
    _around(
        id="P17",
        target="sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
        ".get_next_disagg_prefill_batch_to_run",
        hook=f"{_SCHEDULER_HOOKS}:step_then_next_prefill",
        why="As without P11, on a prefill server of a disaggregated pair.",
        relies_on="NextBatchPlan",
        diffs=_OUT_OF_BAND,
    ),
)
