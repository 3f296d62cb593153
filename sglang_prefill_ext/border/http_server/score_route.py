"""``POST /v1/score`` on the shorter way through the HTTP application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from sglang.srt.entrypoints.openai.protocol import UsageInfo
from starlette.requests import Request

from sglang_prefill_ext.border.http_server.fast_route import shorten_packed
from sglang_prefill_ext.frontend.score.score_api import answer_body, read_request
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.frontend.score.score_frontend import Scored
from sglang_prefill_ext.frontend.worker import Worker

PackedScores: TypeAlias = Callable[[ScoreCall], Awaitable[Scored]]
"""Serves a call on the packed path, or raises `StockPathTaken`, a `ValueError` or an
`HTTPException`."""

_USAGE = UsageInfo().model_dump()


def shorten_scores(app: Any, manager: Any, packed_scores: PackedScores, answers: Worker) -> None:
    """Serve plain requests of the route without SGLang's objects for them.

    Args:
        answers: writes large answers.
    """
    answer = partial(_answer, packed_scores, answers)
    shorten_packed(app, "/v1/score", "openai_serving_score", manager, answer)


async def _answer(
    packed_scores: PackedScores, answers: Worker, body: bytes, request: Request
) -> bytes | None:
    """Answer as `OpenAIServingScore` does; None for what it is to read itself."""
    wanted = read_request(body, request)
    if wanted is None:
        return None
    call, model = wanted
    scored = await packed_scores(call)
    tokens = scored.prompt_tokens
    usage = _USAGE | {"prompt_tokens": tokens, "total_tokens": tokens}
    write = partial(answer_body, scored, model=model, usage=usage)
    return await answers.run_if_large(scored.rows.num_values, write)
