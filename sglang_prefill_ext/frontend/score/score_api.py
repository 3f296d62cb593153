"""Bodies of ``POST /v1/score`` in both directions, without an object for every number.

Only what is plainly right is read here; everything else is left to SGLang, in whose words it is
refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.json_parts import in_parts
from sglang_prefill_ext.frontend.json_types import Int64
from sglang_prefill_ext.frontend.score.array_body import IdsForm, RowsForm, arrays_of
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.frontend.score.score_frontend import Scored


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    items: str | list[str | list[Int64]] | RowsForm
    label_token_ids: list[Int64 | list[Int64]]
    query: str | list[Int64] | IdsForm | None = None
    apply_softmax: bool = False
    temperature: float = 1.0
    return_token_logprobs: bool = False
    item_first: bool = False
    model: str = "default"


_DECODER = msgspec.json.Decoder(_Body)
_ENCODER = msgspec.json.Encoder()


def read_request(body: bytes, request: Any) -> tuple[ScoreCall, str] | None:
    """Read the body of an HTTP request; None if SGLang is to read it.

    Returns:
        The call, and the name of the model that its answer repeats.
    """
    try:
        read = _DECODER.decode(body)
        # Broken arrays are refused elsewhere.
        query, items = arrays_of(read.query, read.items) or (read.query, read.items)
    except (msgspec.DecodeError, UnicodeDecodeError, RequestError):
        return None
    call = ScoreCall(
        query=query,
        items=items,
        label_token_ids=read.label_token_ids,
        apply_softmax=read.apply_softmax,
        item_first=read.item_first,
        request=request,
        temperature=read.temperature,
        return_token_logprobs=read.return_token_logprobs,
    )
    return call, read.model


def answer_body(scored: Scored, *, model: str, usage: dict[str, Any]) -> bytes:
    """Write SGLang's `ScoringResponse`.

    Args:
        usage: a `UsageInfo` as a mapping.
    """
    logprobs = scored.token_logprobs
    return _ENCODER.encode(
        {
            "scores": in_parts(scored.scores),
            "pooled_hidden_states": None,
            "token_logprobs": None if logprobs is None else in_parts(logprobs),
            "model": model,
            "usage": usage,
            "object": "scoring",
        }
    )
