"""``--schedule-policy srpt`` for stock requests: the hook, and SGLang's policy class for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.mem_cache.common import match_kv_cache

from sglang_prefill_ext.border.activation import config_of
from sglang_prefill_ext.scheduling.stock_order import POLICY, Prompt, chunk_limit, to_match

_STOCK_POLICY = "fcfs"


def choose_policy(original: Callable[[Any], None], scheduler: Any) -> None:
    """AROUND `Scheduler.init_schedule_policy`: set our policy, which SGLang does not know."""
    config = config_of(scheduler.server_args)
    if config is None or scheduler.schedule_policy != POLICY:
        original(scheduler)
        return
    scheduler.schedule_policy = _STOCK_POLICY
    original(scheduler)
    scheduler.schedule_policy = POLICY
    scheduler.policy = SrptPolicy(scheduler, config.ageing)


class SrptPolicy(SchedulePolicy):  # type: ignore[misc]
    """Sorts the queue by `scheduling.stock_order`; SGLang's own code takes it for ``fcfs``."""

    def __init__(self, scheduler: Any, ageing: int) -> None:
        super().__init__(
            policy=_STOCK_POLICY,
            tree_cache=scheduler.tree_cache,
            enable_hierarchical_cache=scheduler.enable_hierarchical_cache,
            enable_priority_scheduling=False,  # SGLang refuses it with all but fcfs and lof
            schedule_low_priority_values_first=False,
        )
        self._ageing = ageing

    def calc_priority(
        self, waiting_queue: list[Any], running_batch: Any = None, processed_tokens: int = 0
    ) -> None:
        """Sort the queue in place; among equals the order of the queue stays.

        On a prefill server SGLang does not note when a request was queued, so that is done here.
        """
        for req in waiting_queue:
            req.arrival_processed_tokens = req.arrival_processed_tokens or processed_tokens
        for req in to_match(waiting_queue, lambda req: req.last_node is None):
            match_kv_cache(req, self.tree_cache)
        waiting_queue.sort(key=lambda req: _waiting(req).key(self._ageing))

    def waiting_queue_prefix_matched(self, waiting_queue: list[Any]) -> bool:
        """Always True: requests have counts of cached tokens, which load reports may use."""
        return True

    def shortest_prefill_chunk_limit(
        self, chunked_req: Any, waiting_queue: list[Any], budget: int, page_size: int
    ) -> int | None:
        tokens = len(chunked_req.full_untruncated_fill_ids)
        begun = Prompt(chunked_req.arrival_processed_tokens, tokens, chunked_req.prefix_len)
        return chunk_limit(begun, map(_waiting, waiting_queue), budget, page_size, self._ageing)


def _waiting(req: Any) -> Prompt:
    tokens = len(req.origin_input_ids) + len(req.output_ids)
    return Prompt(req.arrival_processed_tokens, tokens, req.num_matched_prefix_tokens)
