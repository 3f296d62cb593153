"""Checks a user's token ids and embeddings, and writes them for a body."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.client.kinds import checked, is_list
from sglang_prefill_ext.errors import RequestError

Ids: TypeAlias = NDArray[np.int32]

_INT32 = np.dtype("<i4")
_LIMITS = np.iinfo(np.int32)


def token_ids(field: str, ids: Any, dimensions: tuple[int, ...]) -> Ids:
    """Return token ids as an int32 array.

    Args:
        ids: a list or lists of equal length, or an array of whole numbers.
        dimensions: which numbers of dimensions are allowed.

    Raises:
        RequestError: they are of the wrong kind, or none of them can be a token id.
    """
    try:
        array = np.asarray(ids)
    except ValueError:  # lists of different lengths
        array = np.empty((0, 0, 0))
    if array.ndim not in dimensions or not (array.size == 0 or array.dtype.kind in "iu"):
        rows = " or equally long lists of them" * (2 in dimensions)
        raise RequestError(
            f"{field}: {ids!r:.80} is not a list of token ids{rows}. Token ids are whole numbers; "
            "/tokenize gives those of a text."
        )
    if array.size and (array.min() < _LIMITS.min or array.max() > _LIMITS.max):
        raise RequestError(f"{field}: {ids!r:.80} does not fit into 32 bits, as token ids do.")
    return array.astype(_INT32, copy=False)


def as_forms(body: dict[str, Any]) -> dict[str, Any]:
    """Return a scoring body with its token ids in base64; a body of texts is returned as it is."""
    query, items = body["query"], body["items"]
    if isinstance(query, str):
        return body
    counts = np.array([len(row) for row in items], _INT32)
    return body | {
        "query": {"values": _base64(query)},
        "items": {"values": _base64(np.concatenate(items)), "counts": _base64(counts)},
    }


def as_json(array: NDArray[Any]) -> Any:
    """Return token ids as lists, and embeddings in base64 with their shape."""
    if array.dtype.kind != "f":
        return array.tolist()
    return {"dtype": array.dtype.name, "shape": array.shape, "data": _base64(array)}


def _base64(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


Matrix = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class EmbedOverrides:
    """Embeddings that replace those of placeholder tokens, in order.

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
        """Fields of the request for a part of all items; embeddings are little-endian arrays.

        Raises:
            RequestError: an array is of the wrong shape or kind.
        """
        field = "embed_override_token_id"
        found: dict[str, Any] = {field: checked(field, self.token_id, int)}
        given: list[Matrix] = []
        if self.query is not None:
            given.append(_checked("query_embed_overrides", self.query, 2))
            found["query_embed_overrides"] = given[0]
        if self.items is not None:
            field = "item_embed_overrides"
            count = len(self.items) if is_list(self.items) else "no list"
            if count != num_items:
                raise RequestError(f"{field}: {count} for {num_items} items. Give one for each.")
            if isinstance(self.items, np.ndarray):
                found[field] = _checked(field, self.items[part], 3)
                given.append(found[field])
            else:
                each_item = [
                    None if each is None else _checked(f"{field}[{number}]", each, 2)
                    for number, each in enumerate(self.items)
                ]
                found[field] = each_item[part]
                given += [each for each in each_item if each is not None]
        widths = sorted({each.shape[-1] for each in given})
        if len(widths) > 1:
            numbers = ", ".join(map(str, widths))
            raise RequestError(
                f"embed_overrides: embeddings of {numbers} numbers. Give as many as the model's "
                "embeddings have."
            )
        return found


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
