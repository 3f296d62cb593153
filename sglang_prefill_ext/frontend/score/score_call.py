"""A scoring call as SGLang's `score_request` receives it, and whether it can be packed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.wire.arrays import NO_INTS, FlatRows, int_array, lens_of_rows
from sglang_prefill_ext.wire.checks import check_count
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.stock_reason import StockReason

OVERRIDES = ("query_embed_overrides", "item_embed_overrides", "stacked_query_item_embed_overrides")


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """The arguments of `score_request`, with its defaults (same names, same meaning).

    Token ids may also be arrays: `query` an `Int32Array`, `items` `FlatRows`, and `label_token_ids`
    `FlatRows` with one row for all items, or one an item. SGLang's own path takes only lists; see
    `listed`.
    """

    query: Any = None
    items: Any = None
    label_token_ids: Any = None
    apply_softmax: bool = False
    item_first: bool = False
    embed_override_token_id: Any = None
    query_embed_overrides: Any = None
    item_embed_overrides: Any = None
    stacked_query_item_embed_overrides: Any = None
    request: Any = None
    return_pooled_hidden_states: bool = False
    score_extraction_token_id: Any = None
    temperature: float = 1.0
    return_token_logprobs: bool = False
    image_data: Any = None

    @property
    def num_items(self) -> int:
        """Number of items; 0 if `items` has a wrong type."""
        if isinstance(self.items, str):
            return 1
        return len(self.items) if isinstance(self.items, list | FlatRows) else 0

    @property
    def has_texts(self) -> bool:
        """Whether items are texts; there must be at least one."""
        return not isinstance(self.items, FlatRows) and isinstance(self.items[0], str)

    def check_counts(self, config: PrefillOnlyConfig) -> None:
        """Refuse too many items, or label lists that so many items would have.

        Raises:
            TooManyItemsError: more than `max_items`.
        """
        check_count(self.num_items, config)
        labels = self.label_token_ids
        if isinstance(labels, list) and labels and isinstance(labels[0], list):
            check_count(len(labels), config, field="label_token_ids", noun="lists")

    def contents(self) -> dict[str, Any]:
        """Query and items as plain values, under the name `text` or `input_ids`."""
        call = self.listed()
        query, items = call.query, call.items
        first = items[0] if isinstance(items, list) and items else items
        is_text = isinstance(first, str)
        return {"text" if is_text else "input_ids": {"query": query, "items": items}}

    def listed(self) -> ScoreCall:
        """Return the call with lists in the place of arrays of ids."""
        query, items, labels = self.query, self.items, self.label_token_ids
        if isinstance(items, FlatRows):
            query, items = None if query is None else query.tolist(), items.tolist()
        if isinstance(labels, FlatRows):
            rows = labels.tolist()
            labels = rows[0] if len(rows) == 1 else rows or None
        return replace(self, query=query, items=items, label_token_ids=labels)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def has_overrides(self) -> bool:
        """Whether embeddings come with the call."""
        return any(getattr(self, name) is not None for name in OVERRIDES)


def ineligible_reason(call: ScoreCall) -> StockReason | None:
    """Return why a call goes down the stock path, or None if it can be packed.

    Only the shape of the call is looked at. `unusual_input` covers everything that SGLang
    itself refuses or treats in its own way, so that its answer is what the user gets.
    """
    if call.image_data is not None:
        return StockReason.MULTIMODAL
    if call.return_pooled_hidden_states:
        return StockReason.POOLED_HIDDEN_STATES
    if not call.items:
        return StockReason.NO_ITEMS
    if call.score_extraction_token_id is not None and not _is_plain_setwise(call):
        return StockReason.UNUSUAL_INPUT
    if not _is_plain_temperature(call) or not (_is_of(str, call) or _is_token_ids(call)):
        return StockReason.UNUSUAL_INPUT
    if call.has_overrides and not _has_plain_overrides(call):
        return StockReason.UNUSUAL_INPUT
    return None


def prompts_of(call: ScoreCall) -> tuple[Any, Any]:
    """Return ``(query, items)`` with an omitted query made concrete and a lone item listed."""
    if isinstance(call.items, FlatRows):
        return call.query, call.items
    items = [call.items] if isinstance(call.items, str) else call.items
    empty: Any = "" if isinstance(items[0], str) else []
    return (empty if call.query is None else call.query), items


def _is_plain_temperature(call: ScoreCall) -> bool:
    if not isinstance(call.temperature, (int, float)) or not math.isfinite(call.temperature):
        return False
    return call.temperature > 0 and (call.apply_softmax or call.temperature == 1.0)


def _is_plain_setwise(call: ScoreCall) -> bool:
    """Whether the extraction token is an integer, and items are no arrays and follow the query."""
    is_plain = type(call.score_extraction_token_id) is int and not call.item_first
    return is_plain and not isinstance(call.items, FlatRows)


def _has_plain_overrides(call: ScoreCall) -> bool:
    """Whether embeddings are in one form only (query and items, or stacked), one entry an item."""
    items, stacked = call.item_embed_overrides, call.stacked_query_item_embed_overrides
    if type(call.embed_override_token_id) is not int or call.item_first:
        return False
    if isinstance(call.items, str):
        return False
    if stacked is not None and (call.query_embed_overrides is not None or items is not None):
        return False
    if stacked is not None and not _is_token_ids(call):
        return False
    listed = [each for each in (items, stacked) if each is not None]
    return all(isinstance(each, list) and len(each) == len(call.items) for each in listed)


def _is_token_ids(call: ScoreCall) -> bool:
    return isinstance(call.items, FlatRows) or _is_of(list, call)


def _is_of(kind: type, call: ScoreCall) -> bool:
    """Whether the items are a list of this type, or one text, and the query is of it or None."""
    items = [call.items] if isinstance(call.items, str) else call.items
    if not isinstance(call.query, kind | None) or not isinstance(items, list):
        return False
    # One by one only if some are not exactly of the type.
    return set(map(type, items)) <= {kind} or all(isinstance(item, kind) for item in items)


def pack_labels(labels: Any, num_items: int, vocab_size: int) -> Labels | None:
    """Return the labels to read; None if anything is unusual.

    None means "let SGLang judge": its own validation then produces its own error, or
    accepts what we were too strict about.

    Args:
        labels: one list for all items, or one list an item.
    """
    if isinstance(labels, FlatRows):
        return _flat_labels(labels, num_items, vocab_size)
    if not isinstance(labels, list) or not labels:
        return None
    if not isinstance(labels[0], list):
        plain = _is_plain(labels, vocab_size)
        return Labels(int_array(labels)) if plain else None
    if len(labels) != num_items or not all(_is_plain(one, vocab_size) for one in labels):
        return None
    flat = [token for one in labels for token in one]
    return Labels(int_array(flat), lens_of_rows(labels))


def _flat_labels(labels: FlatRows, num_items: int, vocab_size: int) -> Labels | None:
    """`pack_labels` of arrays: one row for all items, or one row an item."""
    ids, counts = labels.values, labels.counts
    if not len(labels) or not counts.all() or len(labels) not in (1, num_items):
        return None
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        return None
    rows = np.repeat(np.arange(len(labels), dtype=np.int64), counts)
    if len(np.unique(rows * vocab_size + ids)) < len(ids):
        return None
    return Labels(ids, counts if len(labels) > 1 else NO_INTS)


def _is_plain(labels: Any, vocab_size: int) -> bool:
    return (
        isinstance(labels, list)
        and bool(labels)
        and all(type(token) is int and 0 <= token < vocab_size for token in labels)
        and len(set(labels)) == len(labels)
    )
