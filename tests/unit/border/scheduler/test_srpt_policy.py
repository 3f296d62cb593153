"""The order of stock requests, as SGLang's scheduler asks for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_prefill_ext.border.scheduler import srpt_policy
from sglang_prefill_ext.border.scheduler.srpt_policy import SrptPolicy


def _request(tokens: int, arrival: int) -> Any:
    return SimpleNamespace(
        origin_input_ids=[0] * tokens,
        output_ids=[],
        num_matched_prefix_tokens=0,
        last_node=None,
        arrival_processed_tokens=arrival,
    )


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_request_ages_whether_sglang_notes_its_arrival_or_not(
    monkeypatch: pytest.MonkeyPatch, is_noted: bool
) -> None:
    monkeypatch.setattr(srpt_policy, "match_kv_cache", lambda req, cache: None)
    policy = object.__new__(SrptPolicy)
    policy.tree_cache, policy._ageing = None, 2
    long = _request(100, arrival=50 * is_noted)
    queue = [long]
    policy.calc_priority(queue, processed_tokens=50)
    for computed, place in ((200, 1), (251, 0)):  # 50 + 2 * 100 lies between 220 and 271
        queue[:] = [long, _request(10, arrival=computed * is_noted)]
        policy.calc_priority(queue, processed_tokens=computed)
        assert queue.index(long) == place
