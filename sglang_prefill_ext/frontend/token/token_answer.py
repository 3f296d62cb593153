"""Makes the answer to a call for log-probs and at most one token, in the form of SGLang's lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from sglang_prefill_ext.frontend.answers import table_rows
from sglang_prefill_ext.frontend.token.token_call import TokenCall
from sglang_prefill_ext.wire.arrays import Float32Array, Int32Array
from sglang_prefill_ext.wire.reads import Best

_CONTEXT_TOKENS = 5
"""Tokens of the prompt that SGLang's detokenizer decodes together with the first new one."""


@dataclass(slots=True)
class TokenAnswer:
    """Lists as SGLang's scheduler makes them (log-probs: natural log).

    `*_val` has values, and `*_idx` the token ids that they belong to. The lists of the prompt begin
    with None, because the first token that is looked at has no predecessor.

    Attributes:
        token: the generated one; None where none was wanted.
    """

    token: int | None = None
    input_token_logprobs_val: list[Any] = field(default_factory=list)
    input_token_logprobs_idx: list[Any] = field(default_factory=list)
    output_token_logprobs_val: list[Any] = field(default_factory=list)
    output_token_logprobs_idx: list[Any] = field(default_factory=list)
    input_top_logprobs_val: list[Any] = field(default_factory=list)
    input_top_logprobs_idx: list[Any] = field(default_factory=list)
    output_top_logprobs_val: list[Any] = field(default_factory=list)
    output_top_logprobs_idx: list[Any] = field(default_factory=list)
    input_token_ids_logprobs_val: list[Any] = field(default_factory=list)
    input_token_ids_logprobs_idx: list[Any] = field(default_factory=list)
    output_token_ids_logprobs_val: list[Any] = field(default_factory=list)
    output_token_ids_logprobs_idx: list[Any] = field(default_factory=list)


def answer_of(call: TokenCall, table: Float32Array, *, vocab_size: int) -> TokenAnswer:
    """Make the answer to a call from the values of its reads.

    Args:
        table: the call's part of `TokenGroup.tables`.
        vocab_size: of the model. As in SGLang, a prompt token with the last id appears as id 0.
    """
    answer, listed_ids = TokenAnswer(), list(call.token_ids or ())
    labels, best = table[:, : call.num_labels], Best.of(table[:, call.num_labels :])
    listed = labels[:, call.num_labels - len(listed_ids) :]
    top_values, top_ids = best.top_log_probs, best.top_tokens.astype(np.int64)
    if call.start is not None:
        tokens = call.ids[call.start :]
        known = np.where(tokens < vocab_size - 1, tokens, 0)
        answer.input_token_logprobs_val = [None, *labels[:-1, 0].tolist()]
        answer.input_token_logprobs_idx = known.tolist()
        answer.input_top_logprobs_val = [None, *table_rows(top_values[:-1])]
        answer.input_top_logprobs_idx = [None, *table_rows(top_ids[:-1])]
        answer.input_token_ids_logprobs_val = [None, *table_rows(listed[:-1])]
        answer.input_token_ids_logprobs_idx = [None, *[listed_ids] * (len(table) - 1)]
    if call.generates:
        answer.token = int(best.token[-1, 0])
        answer.output_token_logprobs_val = [float(best.log_prob[-1, 0])]
        answer.output_token_logprobs_idx = [answer.token]
    answer.output_top_logprobs_val = top_values[-1:].tolist()
    answer.output_top_logprobs_idx = top_ids[-1:].tolist()
    answer.output_token_ids_logprobs_val = listed[-1:].tolist()
    answer.output_token_ids_logprobs_idx = [listed_ids]
    return answer


def token_of(call: TokenCall, table: Float32Array) -> int | None:
    """The token that a call generates, from the table of `answer_of`; None if it wants none."""
    best = Best.of(table[-1:, call.num_labels :])
    return int(best.token[0, 0]) if call.generates else None


def first_text(
    tokenizer: Any,
    prompt: Sequence[int] | Int32Array,
    token: int,
    *,
    skip_special: bool,
    spaces: bool,
) -> str:
    """Return the text that a token adds to a prompt, as SGLang's detokenizer finds it.

    A token's text may depend on the tokens before it, so these are decoded with and without it.
    Tokens of the model that the tokenizer does not know are decoded as token 0.
    """
    before = tuple(map(int, prompt[-_CONTEXT_TOKENS:]))
    return _added_text(tokenizer, before, token, skip_special=skip_special, spaces=spaces)


@lru_cache(maxsize=1024)  # templates end alike, and few different tokens are generated
def _added_text(
    tokenizer: Any, before: tuple[int, ...], token: int, *, skip_special: bool, spaces: bool
) -> str:
    how = {"skip_special_tokens": skip_special, "spaces_between_special_tokens": spaces}
    size = _size(tokenizer)
    ids = [each if 0 <= each < size else 0 for each in (*before, token)]
    known = tokenizer.decode(ids[:-1], **how)
    return str(tokenizer.decode(ids, **how)[len(known) :])


def _size(tokenizer: Any) -> float:
    """How many tokens a tokenizer knows; infinite where it does not say."""
    try:
        return len(tokenizer)
    except TypeError:
        return getattr(tokenizer, "vocab_size", None) or math.inf
