"""Token ids of a user, checked, and the forms of arrays in a body."""

from __future__ import annotations

import base64
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import RequestError

Ids: TypeAlias = NDArray[np.int32]

_INT32 = np.dtype("<i4")
_LIMITS = np.iinfo(np.int32)


def token_ids(field: str, ids: Any, dimensions: tuple[int, ...]) -> Ids:
    """Return token ids as an int32 array.

    Args:
        ids: lists, equally long ones where they are nested, or an array of whole numbers.
        dimensions: how many there may be.

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
            f"{field}: {ids!r:.80} is not a list of token ids{rows}. Token ids are whole numbers."
        )
    if array.size and (array.min() < _LIMITS.min or array.max() > _LIMITS.max):
        raise RequestError(f"{field}: {ids!r:.80} does not fit into 32 bits, as token ids do.")
    return array.astype(_INT32, copy=False)


def as_forms(body: dict[str, Any]) -> dict[str, Any]:
    """Return a scoring body whose token ids are base64; one of texts is returned as it is."""
    query, items = body["query"], body["items"]
    if isinstance(query, str) or isinstance(items[0], str):
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
