"""Divides the rows of a scoring call, so that those that came before are found in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sglang_prefill_ext.frontend.batch_exchange import all_ended
from sglang_prefill_ext.frontend.beginnings import row_beginnings
from sglang_prefill_ext.frontend.exchange import PackedExchange
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.prompt_batch import flat_tokens
from sglang_prefill_ext.wire.arrays import FlatRows
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.parts import RowNumbers, is_divisible, join_results, take_rows
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy


class ScorePart(NamedTuple):
    """Some rows of a scoring call, as a request of their own.

    Attributes:
        numbers: their indices in the call.
        repeated: their prefix came before, so the prefix cache is to keep it.
    """

    numbers: RowNumbers
    rows: PackedRows
    repeated: bool


def parts_of(rows: PackedRows, policy: PrefixPolicy) -> list[ScorePart]:
    """Divide rows, such as items in front of a query, by what is known to have come before.

    Returns:
        One part if nothing is gained, or the rows have to stay together.
    """
    if not is_divisible(rows) or len(rows.overrides):
        return [ScorePart(np.arange(rows.num_rows), rows, False)]
    front = rows.tokens[: rows.prefix_len]
    own = FlatRows(rows.tokens[rows.prefix_len :], rows.suffix_lens).rows()
    parts = []
    for members, prefix, repeated in row_beginnings(front, own, rows.adapter, policy):
        numbers = np.array(members)
        part = take_rows(rows, numbers)
        if prefix > rows.prefix_len:
            prompts = [np.concatenate([front, own[each]]) for each in members]
            tokens, lens = flat_tokens(prompts, prefix)
            part = replace(part, tokens=tokens, prefix_len=prefix, suffix_lens=lens)
        parts.append(ScorePart(numbers, part, repeated))
    return parts


async def ask_parts(
    exchange: PackedExchange,
    rows: PackedRows,
    parts: Sequence[ScorePart],
    options: RequestOptions,
    request: Any,
) -> PackedResult:
    """Send the parts of `rows` together, and join their answers; see `PackedExchange.ask`."""
    kept = replace(options, keep_prefix=True)
    asked = [exchange.ask(part.rows, kept if part.repeated else options, request) for part in parts]
    answers = await all_ended(asked)
    numbers = [part.numbers for part in parts]
    return join_results(rows, list(zip(numbers, answers, strict=True)))
