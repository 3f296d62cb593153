"""Reads the embeddings that come with a scoring request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.wire.arrays import (
    DTYPES,
    Int32Array,
    OverrideArray,
    overrides_from_bytes,
)
from sglang_prefill_ext.wire.checks import wrong
from sglang_prefill_ext.wire.flat import int32_array

_FIELD = "embed_overrides"


@dataclass(frozen=True, slots=True)
class ItemOverrides:
    """The embeddings of a request.

    Attributes:
        token_id: the placeholder.
        query: ``[n, hidden]``; None if the query's placeholders keep their own embeddings.
        table: those of all items, ``[sum(counts), hidden]``; None if the items' keep their own.
        counts: how many each item has, int32 ``[items]``; not used without a table.
    """

    token_id: int
    query: OverrideArray | None
    table: OverrideArray | None
    counts: Int32Array

    def fields(self) -> dict[str, Any]:
        """Fields of `ScoreCall`."""
        items = None
        if self.table is not None:
            parts = np.split(self.table, np.cumsum(self.counts, dtype=np.int64)[:-1])
            items = [part if len(part) else None for part in parts]
        return {
            "embed_override_token_id": self.token_id,
            "query_embed_overrides": self.query,
            "item_embed_overrides": items,
        }


def item_overrides(request: pb.ScoreRequest, num_items: int) -> ItemOverrides | None:
    """Read the embeddings of a request; None if there are none.

    Raises:
        RequestError: arrays are broken, or do not fit the items.
    """
    if not request.HasField(_FIELD):
        return None
    message = request.embed_overrides
    if message.dtype not in DTYPES:
        raise wrong(f"{_FIELD}.dtype", f"{message.dtype!r:.80} is none of {', '.join(DTYPES)}.")
    query = _table(message, "query") if message.query else None
    counts = int32_array(message.item_counts, field=f"{_FIELD}.item_counts")
    items = _table(message, "items")
    if not len(counts) and not len(items):
        return ItemOverrides(message.token_id, query, None, counts)
    if len(counts) != num_items or int(counts.min()) < 0:
        raise wrong(f"{_FIELD}.item_counts", f"send one for each of the {num_items} items.")
    total = int(counts.sum(dtype=np.int64))
    if total != len(items):
        raise wrong(
            f"{_FIELD}.items",
            f"the counts add up to {total}, but there are {len(items)} embeddings.",
        )
    return ItemOverrides(message.token_id, query, items, counts)


def _table(message: pb.EmbedOverrides, name: str) -> OverrideArray:
    try:
        return overrides_from_bytes(getattr(message, name), message.dtype, message.width)
    except PackingError as error:
        raise wrong(f"{_FIELD}.{name}", f"{error}. Send whole embeddings.") from error
