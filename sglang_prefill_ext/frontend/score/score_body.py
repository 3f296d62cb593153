"""Reads and writes plain bodies of ``POST /v1/score``, without an object for every number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.answers import Scored, in_parts, usage_of
from sglang_prefill_ext.frontend.options import Int64, decoded
from sglang_prefill_ext.frontend.score.body_forms import (
    ARRAYS_MARK,
    DECISION_MARK,
    SCORE_MARK,
    BodyOverrides,
    IdsForm,
    RowsForm,
    arrays_of,
    put_lists,
    take_decision_overrides,
    take_score_overrides,
)
from sglang_prefill_ext.frontend.score.score_call import ScoreCall


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
_of_fields = partial(msgspec.convert, type=_Body)


@dataclass(frozen=True, slots=True)
class ScoreBody:
    """A body, which is decoded only once.

    Attributes:
        fields: of a body that may have base64 arrays (`body_forms`); empty for any other.
        read: None if the body is not plainly right.
    """

    body: bytes
    fields: dict[str, Any]
    read: _Body | None

    @classmethod
    def of(cls, body: bytes) -> ScoreBody:
        fields = fields_of(body, ARRAYS_MARK, SCORE_MARK)
        read = decoded(_of_fields, fields) if fields else decoded(_DECODER.decode, body)
        return cls(body, fields, read)

    @property
    def model(self) -> str:
        """The model name, which the answer repeats; empty if the body was not read."""
        return "" if self.read is None else self.read.model

    def call(self, request: Any) -> ScoreCall | None:
        """The call of an HTTP request; None if SGLang is to read its body."""
        read = self.read
        if read is None:
            return None
        query: Any = read.query
        items: Any = read.items
        if self.fields:
            try:
                query, items = arrays_of(query, items) or (query, items)
            except RequestError:
                return None  # `stock` refuses it
        return ScoreCall(
            query=query,
            items=items,
            label_token_ids=read.label_token_ids,
            apply_softmax=read.apply_softmax,
            item_first=read.item_first,
            request=request,
            temperature=read.temperature,
            return_token_logprobs=read.return_token_logprobs,
        )

    def stock(self, config: PrefillOnlyConfig) -> tuple[bytes, BodyOverrides | None]:
        """A body that SGLang can read, and the embeddings that were taken out of it.

        Raises:
            RequestError: a base64 array is wrong; the message names the field.
        """
        listed, taken = put_lists(self.fields, config), take_score_overrides(self.fields, config)
        return _stock_body(self.body, self.fields, listed, taken)


def stock_score_body(body: bytes, config: PrefillOnlyConfig) -> tuple[bytes, BodyOverrides | None]:
    """See `ScoreBody.stock`; for a body that SGLang reads in any case."""
    return ScoreBody(body, fields_of(body, ARRAYS_MARK, SCORE_MARK), None).stock(config)


def stock_decision_body(
    body: bytes, config: PrefillOnlyConfig
) -> tuple[bytes, BodyOverrides | None]:
    """See `ScoreBody.stock`; for a body of ``/v1/decisions``."""
    fields = fields_of(body, ARRAYS_MARK, DECISION_MARK)
    return _stock_body(body, fields, put_lists(fields, config), take_decision_overrides(fields))


def _stock_body(
    body: bytes, fields: dict[str, Any], listed: bool, taken: BodyOverrides | None
) -> tuple[bytes, BodyOverrides | None]:
    return (msgspec.json.encode(fields) if listed or taken else body), taken


def fields_of(body: bytes, *marks: bytes) -> dict[str, Any]:
    """Return the fields of a body that contains one of these marks; empty for any other.

    Also empty for what SGLang is to refuse: broken JSON, no object, or nested too deep.
    """
    if not any(mark in body for mark in marks):
        return {}
    fields = decoded(msgspec.json.decode, body)
    return fields if isinstance(fields, dict) else {}


def answer_body(scored: Scored, *, model: str) -> bytes:
    """Write SGLang's `ScoringResponse`."""
    logprobs = scored.token_logprobs
    return msgspec.json.encode(
        {
            "scores": in_parts(scored.scores),
            "pooled_hidden_states": None,
            "token_logprobs": None if logprobs is None else in_parts(logprobs),
            "model": model,
            "usage": usage_of(scored.rows.num_prompt_tokens),
            "object": "scoring",
        }
    )
