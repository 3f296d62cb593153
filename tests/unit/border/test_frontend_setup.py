"""What a front end leaves to SGLang by the server's flags."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_prefill_ext.border.frontend_setup import why_all_is_stock
from sglang_prefill_ext.wire.stock_reason import StockReason


def manager(
    preferred: dict[str, Any] | None, *, generates: bool = True, multi_item: bool = False
) -> SimpleNamespace:
    return SimpleNamespace(
        preferred_sampling_params=preferred,
        is_generation=generates,
        server_args=SimpleNamespace(enable_mis=multi_item),
    )


@pytest.mark.parametrize(
    "preferred",
    [{"logit_bias": {"7": 4.0}}, {"temperature": 0.5, "min_new_tokens": 1}, {"regex": "yes|no"}],
)
def test_preferred_parameters_that_change_log_probs(preferred: dict[str, Any]) -> None:
    assert why_all_is_stock(manager(preferred)) is StockReason.UNUSUAL_INPUT
    assert why_all_is_stock(manager(preferred, generates=False)) is None


@pytest.mark.parametrize("preferred", [None, {}, {"temperature": 0.5, "top_p": 0.9, "top_k": 20}])
def test_preferred_parameters_that_only_draw(preferred: dict[str, Any] | None) -> None:
    assert why_all_is_stock(manager(preferred)) is None


def test_multi_item_scoring() -> None:
    reason = why_all_is_stock(manager(None, multi_item=True))
    assert reason is StockReason.MULTI_ITEM_SCORING
