from __future__ import annotations

import json

from sglang_prefill_ext.frontend.answers import Scored
from sglang_prefill_ext.frontend.explain import experts_recently, explain_packed, explain_stock
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.stock_reason import StockReason
from tests.unit.frontend.links import stub_answer

ROWS = PackedRows(int_array([1, 2, 3, 4, 5, 4]), 3, int_array([1, 1, 1]), Labels(int_array([7])))
"""Three rows behind a prefix of three tokens; the first and the last are equal."""


ANSWER = stub_answer(forwards=2, tokens_computed=5, tokens_cached=2)


def test_a_packed_request_is_told_with_its_cost() -> None:
    facts = explain_packed(Scored([], None, ROWS, ANSWER))
    assert json.loads(json.dumps(facts)) == {
        "path": "packed",
        "reason": None,
        "execution_class": "one_shot",
        "rows": 3,
        "distinct_rows": 2,
        "prompt_tokens": 12,
        "prefix_tokens": 3,
        "prefix_tokens_cached": 2,
        "forwards": 2,
        "tokens_computed": 5,
        "tokens_saved": 7,
        "queue_ms": 1.5,
        "compute_ms": 2.5,
    }


def test_a_stock_request_is_told_with_its_reason() -> None:
    assert explain_stock(StockReason.GRAMMAR) == {"path": "stock", "reason": "grammar"}


def test_layers_of_experts_are_told_once_they_were_looked_at() -> None:
    never = {"padded": 0.0, "stock_padded": 0.0, "busiest_share": 0.0}
    looked = {"padded": 1.2, "stock_padded": 1.5, "busiest_share": 0.1}
    schedulers = [
        {"dp_rank": 0, "experts": {"layers": [never, never]}},
        {"dp_rank": 1, "experts": {"layers": [looked, never]}},
    ]
    assert experts_recently(schedulers) == [{"dp_rank": 1, "layer": 0, **looked}]
    assert experts_recently(schedulers[:1]) is None
    assert experts_recently([{"dp_rank": 0, "experts": {"layers": []}}]) is None
