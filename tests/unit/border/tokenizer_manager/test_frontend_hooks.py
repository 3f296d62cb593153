from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_prefill_ext.errors import TooManyItemsError
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.metrics import FrontendMetrics

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's, about kernels that this machine lacks
    from sglang_prefill_ext.border.tokenizer_manager import frontend_hooks


async def test_a_call_of_too_many_items_is_refused_before_a_record_is_made_of_it() -> None:
    def refuse(call: ScoreCall) -> None:
        raise TooManyItemsError("items: too many")

    # Neither the front end nor the manager has anything else.
    frontend: Any = SimpleNamespace(metrics=FrontendMetrics(), check_limits=refuse)
    with pytest.raises(TooManyItemsError):
        await frontend_hooks._packed_scores(SimpleNamespace(), frontend, ScoreCall())
    assert frontend.metrics.as_dict()["requests"] == {"refused": 1}
