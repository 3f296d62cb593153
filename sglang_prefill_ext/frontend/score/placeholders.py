"""Puts the embeddings of a scoring call into its prompts, at placeholder tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.overrides import checked_overrides, numbered_overrides
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.wire.arrays import EmbeddingKind, OverrideArray
from sglang_prefill_ext.wire.stock_reason import StockReason


@dataclass(frozen=True, slots=True)
class Placed:
    """The prompts of a call with negative ids in place of its placeholders.

    Attributes:
        query: what all items share.
        items: what follows it in each row.
        overrides: the table that the negative ids name rows of.
    """

    query: list[int]
    items: list[list[int]]
    overrides: OverrideArray


def place_overrides(
    call: ScoreCall, query: list[int], items: list[list[int]], kind: EmbeddingKind
) -> Placed:
    """Put the embeddings of a call into the places of its placeholders, in order.

    If a stacked call has different embeddings in the query for some items, no query is shared.

    Args:
        call: its embeddings are arrays: ``[n, hidden]``, or a list of ``[hidden]``.
        query, items: token ids, all in the vocabulary.
        kind: of the model's embeddings.

    Raises:
        StockPathTaken: a prompt does not have as many placeholders as embeddings, which SGLang
            refuses; or the model's layers look the tokens up, too.
        RequestError: see `checked_overrides`.
    """
    if kind.with_tokens:
        raise StockPathTaken(StockReason.EMBED_OVERRIDES)
    token = call.embed_override_token_id
    in_query, in_items = checked_matrices(call, query.count(token), kind)
    table, (query_ids, item_ids) = numbered_overrides([in_query, in_items])
    if not _fits(token, [query] * len(query_ids), query_ids) or not _fits(token, items, item_ids):
        raise StockPathTaken(StockReason.UNUSUAL_INPUT)
    queries = [_place(query, token, ids) for ids in query_ids]
    items = [_place(item, token, ids) for item, ids in zip(items, item_ids, strict=True)]
    if all(each == queries[0] for each in queries):
        return Placed(queries[0], items, table)
    return Placed([], [a + b for a, b in zip(queries, items, strict=True)], table)


def checked_matrices(
    call: ScoreCall, in_query: int, kind: EmbeddingKind
) -> tuple[list[OverrideArray | None], list[OverrideArray | None]]:
    """Embeddings of the query, one matrix for all items or one an item; and those of the items.

    Items that share an array share its matrix.

    Args:
        call: see `place_overrides`.
        in_query: placeholders in the query, which have the first embeddings of a stacked call.

    Raises:
        RequestError: see `checked_overrides`.
    """
    known: dict[int, OverrideArray] = {}

    def checked(field: str, value: Any) -> OverrideArray | None:
        if value is None:
            return None
        if id(value) not in known:
            known[id(value)] = checked_overrides(field, value, kind)
        return known[id(value)]

    if call.stacked_query_item_embed_overrides is None:
        own = call.item_embed_overrides
        own = [None] * call.num_items if own is None else own
        of_query = [checked("query_embed_overrides", call.query_embed_overrides)]
        return of_query, [checked(f"item_embed_overrides[{i}]", each) for i, each in enumerate(own)]
    whole = [
        checked(f"stacked_query_item_embed_overrides[{i}]", each)
        for i, each in enumerate(call.stacked_query_item_embed_overrides)
    ]
    return (
        [None if each is None else each[:in_query] for each in whole],
        [None if each is None else each[in_query:] for each in whole],
    )


def _fits(token: int, prompts: list[list[int]], ids: list[list[int] | None]) -> bool:
    return all(
        own is None or prompt.count(token) == len(own)
        for prompt, own in zip(prompts, ids, strict=True)
    )


def _place(prompt: list[int], token: int, ids: list[int] | None) -> list[int]:
    if not ids:
        return prompt
    left = iter(ids)
    return [next(left) if each == token else each for each in prompt]
