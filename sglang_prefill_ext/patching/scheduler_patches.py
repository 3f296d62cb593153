"""What is changed in SGLang's scheduler; a part of `table.PATCHES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_HOOKS = "sglang_prefill_ext.border.scheduler"
_SCHEDULER_HOOKS = f"{_HOOKS}.scheduler_hooks"
_MANAGERS = "sglang.srt.managers"
_SCHEDULER = f"{_MANAGERS}.scheduler.Scheduler"

_EMBEDS = ("0030-refuse-embeddings-that-end-the-scheduler.patch",)
_MESSAGES = ("0003-plugin-message-types.patch",)
_OUT_OF_BAND = ("0004-out-of-band-work.patch",)

SCHEDULER_PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P10",
        target=f"{_SCHEDULER}.init_request_dispatcher",
        kind=Kind.AFTER,
        hook=f"{_SCHEDULER_HOOKS}:attach_runtime",
        group=Group.SCHEDULER,
        why="Packed requests would have no handler, pauses and weight updates would not wait for "
        "packed forwards, and embeddings would end a scheduler whose model takes none.",
        signature="(self)",
        relies_on="self._request_dispatcher TypeBasedDispatcher PauseGenerationReqInput "
        "BeginWeightUpdateReqInput EndWeightUpdateReqInput UpdateWeightFromDiskReqInput "
        "UpdateWeightsFromDistributedReqInput UpdateWeightsFromIPCReqInput "
        "UpdateWeightsFromTensorReqInput ReleaseMemoryOccupationReqInput "
        "TokenizedGenerateReqInput TokenizedEmbeddingReqInput BatchTokenizedGenerateReqInput "
        "BatchTokenizedEmbeddingReqInput",
        fingerprints={"0.5.23": "a79b2747a8c40a56921e2bb2ab097e0e4a819efa0b266d6c1c7258a8b1c366ad"},
        diffs=_MESSAGES + _OUT_OF_BAND + _EMBEDS,
    ),
    Patch(
        id="P11",
        target=f"{_SCHEDULER}.get_next_batch_to_run",
        kind=Kind.AROUND,
        hook=f"{_SCHEDULER_HOOKS}:step_then_next_batch",
        group=Group.SCHEDULER,
        why="Packed requests would wait for ever: nothing in the event loops would run them.",
        signature="(self, running_batch, last_batch)",
        relies_on="NextBatchPlan",
        fingerprints={"0.5.23": "2c17ff30edbe675b1ee02bfab2fa09cdfa231e5589d2e85b0923e37eac82c01d"},
        diffs=_OUT_OF_BAND,
    ),
    Patch(
        id="P12",
        target=f"{_SCHEDULER}.is_fully_idle",
        kind=Kind.AROUND,
        hook=f"{_SCHEDULER_HOOKS}:is_fully_idle",
        group=Group.SCHEDULER,
        why="Cache flushes, weight updates and sleep would start while packed work is under way.",
        signature="(self, for_health_check=False, ignore_waiting=False)",
        relies_on="self.running_batch.is_empty",
        fingerprints={"0.5.23": "5e5ea58c6a82e226dfdd24d1629be79971e2bf44cd8703d9960f228abcbbd441"},
        diffs=_OUT_OF_BAND,
    ),
    Patch(
        id="P13",
        target=f"{_SCHEDULER}.abort_request",
        kind=Kind.AFTER,
        hook=f"{_SCHEDULER_HOOKS}:abort_packed",
        group=Group.SCHEDULER,
        why="Aborts search only stock queues: a packed request of a client that left would run.",
        signature="(self, recv_req)",
        relies_on="recv_req.rid recv_req.abort_all",
        fingerprints={"0.5.23": "9baa7e36acfb7f74982552ba47909c187f9f6d25e4acefc9b5a63cfccf97acad"},
        diffs=_OUT_OF_BAND,
    ),
    Patch(
        id="P14",
        target=f"{_MANAGERS}.scheduler_components.load_inquirer.SchedulerLoadInquirer.get_loads",
        kind=Kind.AFTER,
        hook=f"{_SCHEDULER_HOOKS}:add_packed_load",
        group=Group.SCHEDULER,
        why="Balancing and load reports would take a replica full of packed work for an idle one.",
        signature="(self)",
        relies_on="LoadSnapshot num_waiting_reqs num_total_tokens",
        fingerprints={"0.5.23": "d72b0bf022b54385208bece8ac3e26eaabf5c9b110e87f28d4e03d9515f6c87a"},
        diffs=_OUT_OF_BAND,
    ),
    Patch(
        id="P15",
        target=f"{_MANAGERS}.scheduler_components.request_receiver.SchedulerRequestReceiver"
        "._pull_raw_reqs",
        kind=Kind.AFTER,
        hook=f"{_SCHEDULER_HOOKS}:add_deadline_check",
        group=Group.SCHEDULER,
        why="Late requests would be computed, as ranks with clocks of their own would drop "
        "different ones and wait for each other for ever.",
        signature="(self)",
        relies_on="self.recv_from_tokenizer recv_reqs",
        fingerprints={"0.5.23": "bd3c1529f9b5d17f71e10961b0266d47b8120029b07aca46ea3281cb78e2849b"},
        diffs=("0014-hooks-on-pulled-requests.patch",),
    ),
    Patch(
        id="P16",
        target=f"{_SCHEDULER}.init_schedule_policy",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}.srpt_policy:choose_policy",
        group=Group.SCHEDULER,
        why="SGLang's scheduler would not know --schedule-policy srpt and end.",
        signature="(self)",
        relies_on="self.policy SchedulePolicy self.schedule_policy self.tree_cache "
        "self.enable_hierarchical_cache",
        fingerprints={"0.5.23": "a8c8a80ef15ed77cd0bc50abaab9caff3b24ab26d7cde708fb41eb0a9cc5a9e6"},
        diffs=("0015-srpt-schedule-policy.patch",),
    ),
    Patch(
        id="P17",
        target="sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
        ".get_next_disagg_prefill_batch_to_run",
        kind=Kind.AROUND,
        hook=f"{_SCHEDULER_HOOKS}:step_then_next_prefill",
        group=Group.SCHEDULER,
        why="As without P11, on a prefill server of a disaggregated pair.",
        signature="(self, running_batch, last_batch, should_retry_storage_prefetch=True)",
        relies_on="NextBatchPlan",
        fingerprints={"0.5.23": "c67146d47314afb78872bc4a0ac2bb83c9938607e87723b5cf77d2126871b39e"},
        diffs=_OUT_OF_BAND,
    ),
)
