"""Embeddings that a scoring call sends along, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import RequestError

Matrix = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class EmbedOverrides:
    """Embeddings that take the places of placeholder tokens, in order.

    Args:
        token_id: the placeholder.
        query: ``[n, hidden]`` for the n placeholders of the query; None leaves them as they are.
        items: ``[n, hidden]`` for the placeholders of each item, or None for one that keeps its
            own; or one array ``[items, n, hidden]``.

    float16 is sent as it is, anything else as float32.
    """

    token_id: int
    query: Matrix | None = None
    items: Sequence[Matrix | None] | Matrix | None = None

    def fields(self, part: slice, num_items: int) -> dict[str, Any]:
        """Fields of a request that holds a part of all items; embeddings are little-endian arrays.

        Raises:
            RequestError: an array is of the wrong shape or kind.
        """
        found: dict[str, Any] = {"embed_override_token_id": int(self.token_id)}
        if self.query is not None:
            found["query_embed_overrides"] = _checked("query_embed_overrides", self.query, 2)
        if self.items is None:
            return found
        field = "item_embed_overrides"
        if len(self.items) != num_items:
            raise RequestError(
                f"{field}: {len(self.items)} for {num_items} items. Give one for each item."
            )
        if isinstance(self.items, np.ndarray):
            return found | {field: _checked(field, self.items[part], 3)}
        checked = [
            None if each is None else _checked(f"{field}[{number}]", each, 2)
            for number, each in enumerate(self.items)
        ]
        return found | {field: checked[part]}


def _checked(field: str, value: Any, dimensions: int) -> Matrix:
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.empty(0)
    if array.ndim != dimensions or array.dtype.kind != "f":
        raise RequestError(
            f"{field}: {array.dtype} numbers of shape {list(array.shape)}. "
            f"Give an array of floats in {dimensions} dimensions."
        )
    return array.astype("<f2" if array.dtype == np.float16 else "<f4", copy=False)
