"""Which calls for scores are packed, on stand-ins for SGLang's manager and the packed path."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_prefill_ext.border.tokenizer_manager.call_context import CallContext
from sglang_prefill_ext.border.tokenizer_manager.score_hooks import packed_scores
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.wire.stock_reason import StockReason
from tests.unit.frontend.links import StubLink, path_of


class Frontend:
    def check_limits(self, _call: ScoreCall) -> None:
        pass

    async def score(self, _call: ScoreCall, _options: Any) -> Any:
        return SimpleNamespace(served=None)


async def packed(preferred: dict[str, Any] | None) -> Any:
    server = SimpleNamespace(
        manager=SimpleNamespace(preferred_sampling_params=preferred),
        path=path_of(StubLink()),
        score=Frontend(),
        records=SimpleNamespace(keeping=lambda *_about: nullcontext(SimpleNamespace())),
    )
    call = ScoreCall([1], [[2], [3]], [7])
    return await packed_scores(server, call, CallContext(None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "preferred",
    [{"logit_bias": {"7": 4.0}}, {"temperature": 0.5, "min_new_tokens": 1}, {"regex": "yes|no"}],
)
async def test_preferred_parameters_that_change_log_probs(preferred: dict[str, Any]) -> None:
    with pytest.raises(StockPathTaken) as taken:
        await packed(preferred)
    assert taken.value.reason is StockReason.UNUSUAL_INPUT


@pytest.mark.parametrize("preferred", [None, {}, {"temperature": 0.5, "top_p": 0.9, "top_k": 20}])
async def test_preferred_parameters_that_only_draw(preferred: dict[str, Any] | None) -> None:
    assert (await packed(preferred)).served is None
