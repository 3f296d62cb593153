"""Embeddings as base64 in the bodies of scoring requests, beside the lists that SGLang knows.

``{"dtype": "float16", "shape": [2, 4096], "data": "<base64>"}`` stands for a nested list of that
shape; the numbers lie row by row, little-endian. A list of thousands of decimal numbers an item
takes longer to read than the item to score.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.json_fields import fields_of
from sglang_prefill_ext.wire.overrides import DTYPES, OverrideArray
from sglang_prefill_ext.wire.sizes import check_count

_TOKEN = "embed_override_token_id"
_QUERY = "query_embed_overrides"
_ITEMS = "item_embed_overrides"
_INPUT = "input_embed_overrides"

_KEYS = {"dtype", "shape", "data"}

_LARGEST_SIZE = 2**20  # what is empty may be as wide as it says, but numpy has a limit


@dataclass(frozen=True, slots=True)
class BodyOverrides:
    """What was taken out of a body.

    Attributes:
        found: arguments of `score_request`.
        every_item: embeddings for every prompt alike.
    """

    found: dict[str, Any]
    every_item: OverrideArray | None = None

    def arguments(self, num_items: int) -> dict[str, Any]:
        """Arguments of `score_request` that the body could not carry."""
        if self.every_item is None:
            return self.found
        return self.found | {_ITEMS: [self.every_item] * num_items}


def read_score_overrides(
    body: bytes, config: PrefillOnlyConfig
) -> tuple[bytes, BodyOverrides] | None:
    """Take the embeddings out of a body of ``/v1/score``.

    Returns:
        The body without them; None if there are none in this form.

    Raises:
        RequestError: what is there is wrong; the message names the field.
    """
    fields = fields_of(body, b"_embed_overrides")
    query, items = fields.get(_QUERY), fields.get(_ITEMS)
    found: dict[str, Any] = {}
    if isinstance(query, dict):
        found[_QUERY] = _array(_QUERY, query, 2)
    if isinstance(items, dict):
        array = _array(_ITEMS, items, 3)
        _check_count(len(array), fields, config)
        found[_ITEMS] = list(array)
    elif isinstance(items, list) and any(isinstance(each, dict) for each in items):
        _check_count(len(items), fields, config)
        found[_ITEMS] = [
            None if each is None else _array(f"{_ITEMS}[{number}]", each, 2)
            for number, each in enumerate(items)
        ]
    return (_without(fields, found), BodyOverrides(found)) if found else None


def read_decision_overrides(
    body: bytes, _config: PrefillOnlyConfig
) -> tuple[bytes, BodyOverrides] | None:
    """Take the embeddings out of a body of ``/v1/decisions``; see `read_score_overrides`.

    They replace, in order, the placeholders of every question's prompt.
    """
    fields = fields_of(body, b'"' + _INPUT.encode())
    if _INPUT not in fields:
        return None
    token = fields.get(_TOKEN)
    if type(token) is not int:
        raise RequestError(f"{_TOKEN}: {token!r} is not the id of the placeholder token.")
    found = BodyOverrides({_TOKEN: token}, every_item=_array(_INPUT, fields[_INPUT], 2))
    return _without(fields, (_INPUT, _TOKEN)), found


def _check_count(found: int, fields: dict[str, Any], config: PrefillOnlyConfig) -> None:
    """Refuse embeddings for items that are not there, or are too many."""
    items = fields.get("items")
    count = len(items) if isinstance(items, list) else int(isinstance(items, str))
    check_count(count, config)
    if found != count:
        raise RequestError(f"{_ITEMS}: {found} for {count} items. Send one for every item.")


def _without(fields: dict[str, Any], taken: Iterable[str]) -> bytes:
    left = {name: value for name, value in fields.items() if name not in taken}
    return msgspec.json.encode(left)


def _array(field: str, form: Any, dimensions: int) -> OverrideArray:
    if not isinstance(form, dict) or form.keys() != _KEYS:
        raise RequestError(f"{field}: not an object of dtype, shape and data.")
    dtype, shape, data = form["dtype"], form["shape"], form["data"]
    if dtype not in DTYPES:
        raise RequestError(f"{field}.dtype: {dtype!r:.80} is none of {', '.join(DTYPES)}.")
    if not isinstance(shape, list) or len(shape) != dimensions or not _are_sizes(shape):
        raise RequestError(
            f"{field}.shape: {shape!r:.80} is not a list of {dimensions} sizes, of which the first "
            "alone may be 0."
        )
    kind = np.dtype(dtype).newbyteorder("<")
    try:
        raw = base64.b64decode(data, validate=True)
    except (TypeError, ValueError) as error:
        raise RequestError(f"{field}.data: not base64 ({error}).") from error
    if len(raw) != kind.itemsize * math.prod(shape):
        raise RequestError(
            f"{field}.data: {len(raw)} bytes for the shape {shape} of {dtype}, which takes "
            f"{kind.itemsize * math.prod(shape)}. Encode the whole array, row by row."
        )
    array: OverrideArray = np.frombuffer(raw, kind).reshape(shape)
    return array


def _are_sizes(shape: list[Any]) -> bool:
    in_range = all(type(size) is int and 0 <= size <= _LARGEST_SIZE for size in shape)
    # Were another one than the first 0, no data would have to come for however many items.
    return in_range and all(shape[1:])
