"""The hook in SGLang's front-end processes by which scoring takes the packed path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from sglang.srt.managers.tokenizer_manager_score_mixin import ScoreResult

from sglang_prefill_ext.border.tokenizer_manager.call_context import (
    CallContext,
    call_with,
    counted,
    stock_path,
)
from sglang_prefill_ext.border.tokenizer_manager.overrides import stock_arguments, with_arrays
from sglang_prefill_ext.border.tokenizer_manager.server import PrefillServer, server_of
from sglang_prefill_ext.frontend.answers import Scored, served_rows
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.explain import explain_packed, explain_stock
from sglang_prefill_ext.frontend.pack import FIELD
from sglang_prefill_ext.frontend.score.score_call import ScoreCall


async def score_request(
    original: Callable[..., Awaitable[Any]], manager: Any, *args: Any, **kwargs: Any
) -> Any:
    """AROUND `TokenizerManagerScoreMixin.score_request`.

    Raises:
        Exception: see `counted`.
    """
    server = server_of(manager)
    if server is None:
        return await original(manager, *args, **kwargs)
    call = ScoreCall(*args, **kwargs)
    context = call_with(call.request)
    if context.overrides is not None:  # embeddings that came in an HTTP body
        call = replace(call, **context.overrides.arguments(call.num_items))
    if not manager.is_generation:
        # SGLang makes these scores of vectors, which it asks for by a call that is packed itself.
        return await original(manager, **stock_arguments(call, server.path.embeddings))
    try:
        context.raise_if_taken()
        scored = await packed_scores(server, with_arrays(call), context)
    except StockPathTaken as stock:
        server.path.metrics.record_fallback(stock.reason)
        context.explain(explain_stock, stock.reason)
        with stock_path(field=FIELD):
            arguments = stock_arguments(stock.call or call, server.path.embeddings)
            return await original(manager, **arguments)
    context.explain(explain_packed, scored)
    return ScoreResult(
        scores=scored.scores,
        prompt_tokens=scored.rows.num_prompt_tokens,
        token_logprobs=scored.token_logprobs,
    )


async def packed_scores(server: PrefillServer, call: ScoreCall, context: CallContext) -> Scored:
    """Serve a call on the packed path.

    Raises:
        StockPathTaken: SGLang is to serve it.
        Exception: see `counted`.
    """
    with counted(server.path.metrics, context):
        # Before items are processed, even for a record.
        call.check_counts(server.path.config)
        with server.records.keeping(call.request, call.num_items, call.contents) as record:
            context.raise_if_opted_out()
            scored = await server.score.score(call, context.options(server.path.config))
            record.served = served_rows(scored.rows, scored.answer)
    return scored
