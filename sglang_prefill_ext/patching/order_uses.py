"""What the order of stock prefills uses of SGLang's scheduler; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_POLICY = "sglang.srt.managers.schedule_policy.SchedulePolicy"
_USED_BY = ("border.scheduler.srpt_policy",)

ORDER_USES = (
    Use(
        id="U84",
        target=f"{_POLICY}.__init__",
        group=Group.SCHEDULER,
        used_by=_USED_BY,
        why="the base of our policy",
        signature="(self, policy, tree_cache, enable_hierarchical_cache, "
        "enable_priority_scheduling, schedule_low_priority_values_first)",
    ),
    Use(
        id="U85",
        target=f"{_POLICY}.calc_priority",
        group=Group.SCHEDULER,
        used_by=_USED_BY,
        why="our policy's sorts the queue instead",
        signature="(self, waiting_queue, running_batch=None, processed_tokens=0)",
    ),
    Use(
        id="U86",
        target=f"{_POLICY}.waiting_queue_prefix_matched",
        group=Group.SCHEDULER,
        used_by=_USED_BY,
        why="our policy's says yes",
        signature="(self, waiting_queue)",
    ),
    Use(
        id="U87",
        target=f"{_POLICY}.shortest_prefill_chunk_limit",
        group=Group.SCHEDULER,
        used_by=_USED_BY,
        why="our policy's leaves room for prompts that overtake",
        signature="(self, chunked_req, waiting_queue, budget, page_size)",
    ),
    Use(
        id="U88",
        target="sglang.srt.mem_cache.common.match_kv_cache",
        group=Group.SCHEDULER,
        used_by=_USED_BY,
        why="counts the cached tokens of a request",
        signature="(req, tree_cache, token_ids=None, *, cow_mamba=False, max_prefix_len=None)",
    ),
    Use(
        id="U89",
        target="sglang.srt.managers.schedule_batch.Req",
        group=Group.SCHEDULER,
        used_by=(*_USED_BY, "border.scheduler.ask_both_paths"),
        why="age, length and cached tokens of a request; a known prompt as a request",
        members=(
            *"arrival_processed_tokens origin_input_ids output_ids last_node prefix_len".split(),
            *"num_matched_prefix_tokens full_untruncated_fill_ids".split(),
            *"extend_end logprob_start_len".split(),
        ),
    ),
)
