"""Reads base64 arrays in the bodies of scoring requests, where SGLang knows only lists.

``{"values": "<base64>"}`` stands for the token ids of a query, and ``{"values": "<base64>",
"counts": "<base64>"}`` for those of items: little-endian int32, the items one behind the other and
the length of each. ``{"dtype": "float16", "shape": [2, 4096], "data": "<base64>"}`` stands for
embeddings, a nested list of that shape; the numbers lie row by row, little-endian. Arrays save
time: reading a token id from decimal digits takes longer than packing it, and reading the thousands
of numbers of an embedding takes longer than scoring an item.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.wire.arrays import DTYPES, NO_INTS, FlatRows, Int32Array, OverrideArray
from sglang_prefill_ext.wire.checks import check_count, wrong
from sglang_prefill_ext.wire.flat import flat_rows, int32_array

_TOKEN = "embed_override_token_id"
_QUERY = "query_embed_overrides"
_ITEMS = "item_embed_overrides"
_INPUT = "input_embed_overrides"

SCORE_MARK = b"_embed_overrides"
DECISION_MARK = b'"' + _INPUT.encode()

_KEYS = {"dtype", "shape", "data"}

_LARGEST_SIZE = 2**20  # also bounds empty arrays, whose data says nothing of their width


@dataclass(frozen=True, slots=True)
class BodyOverrides:
    """The embeddings that were taken out of a body.

    Attributes:
        found: arguments of `score_request`.
        every_item: the same embeddings for every prompt.
    """

    found: dict[str, Any]
    every_item: OverrideArray | None = None

    def arguments(self, num_items: int) -> dict[str, Any]:
        """Arguments of `score_request` that the body could not carry."""
        if self.every_item is None:
            return self.found
        return self.found | {_ITEMS: [self.every_item] * num_items}


def take_score_overrides(fields: dict[str, Any], config: PrefillOnlyConfig) -> BodyOverrides | None:
    """Take the embeddings out of the fields of a body of ``/v1/score``; None without any.

    Raises:
        RequestError: an array is wrong; the message names the field.
    """
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
    for name in found:
        del fields[name]
    return BodyOverrides(found) if found else None


def take_decision_overrides(fields: dict[str, Any]) -> BodyOverrides | None:
    """Take the embeddings out of the fields of a body of ``/v1/decisions``; None without any.

    They replace, in order, the placeholders of every question's prompt.
    """
    if _INPUT not in fields:
        return None
    token = fields.get(_TOKEN)
    if type(token) is not int:
        raise wrong(_TOKEN, f"{token!r} is not the id of the placeholder token.")
    every_item = _array(_INPUT, fields[_INPUT], 2)
    del fields[_INPUT], fields[_TOKEN]
    return BodyOverrides({_TOKEN: token}, every_item)


def _check_count(found: int, fields: dict[str, Any], config: PrefillOnlyConfig) -> None:
    """Refuse too many items, and embeddings that are not one entry an item."""
    items = fields.get("items")
    count = len(items) if isinstance(items, list) else int(isinstance(items, str))
    check_count(count, config)
    if found != count:
        raise wrong(_ITEMS, f"{found} for {count} items. Send one for every item.")


def _array(field: str, form: Any, dimensions: int) -> OverrideArray:
    if not isinstance(form, dict) or form.keys() != _KEYS:
        raise wrong(field, "not an object of dtype, shape and data.")
    dtype, shape, data = form["dtype"], form["shape"], form["data"]
    if dtype not in DTYPES:
        raise wrong(f"{field}.dtype", f"{dtype!r:.80} is none of {', '.join(DTYPES)}.")
    if not isinstance(shape, list) or len(shape) != dimensions or not _are_sizes(shape):
        raise wrong(
            f"{field}.shape",
            f"{shape!r:.80} is not a list of {dimensions} sizes, of which the first alone may "
            "be 0.",
        )
    kind = np.dtype(dtype).newbyteorder("<")
    try:
        raw = base64.b64decode(data, validate=True)
    except (TypeError, ValueError) as error:
        raise wrong(f"{field}.data", f"not base64 ({error}).") from error
    if len(raw) != kind.itemsize * math.prod(shape):
        raise wrong(
            f"{field}.data",
            f"{len(raw)} bytes for the shape {shape} of {dtype}, which takes "
            f"{kind.itemsize * math.prod(shape)}. Encode the whole array, row by row.",
        )
    array: OverrideArray = np.frombuffer(raw, kind).reshape(shape)
    return array


def _are_sizes(shape: list[Any]) -> bool:
    in_range = all(type(size) is int and 0 <= size <= _LARGEST_SIZE for size in shape)
    # If another size than the first were 0, an array of any number of items would need no data.
    return in_range and all(shape[1:])


ARRAYS_MARK = b'"values"'


class IdsForm(msgspec.Struct, forbid_unknown_fields=True):
    """The ids of a query."""

    values: bytes


class RowsForm(msgspec.Struct, forbid_unknown_fields=True):
    """The ids of items."""

    values: bytes
    counts: bytes


_Form = TypeVar("_Form", IdsForm, RowsForm)


def arrays_of(query: object, items: object) -> tuple[Int32Array, FlatRows] | None:
    """Return the ids of query and items, without copying; None if neither is in this form.

    Raises:
        RequestError: only one of the two is in this form, the bytes are no int32 numbers, or the
            counts do not fit the values.
    """
    if not isinstance(query, IdsForm) and not isinstance(items, RowsForm):
        return None
    if not isinstance(items, RowsForm) or not isinstance(query, IdsForm | None):
        raise wrong("query, items", "an array beside something else. Send both as arrays.")
    ids = NO_INTS if query is None else int32_array(query.values, field="query.values")
    return ids, flat_rows(items.values, items.counts, field="items")


def put_lists(fields: dict[str, Any], config: PrefillOnlyConfig) -> bool:
    """Replace the arrays of a body by lists, which SGLang can read; return whether there were any.

    Raises:
        RequestError: the arrays are wrong, or of too many items; the message names the field.
    """
    query, items = _form(fields, "query", IdsForm), _form(fields, "items", RowsForm)
    arrays = arrays_of(query, items)
    if arrays is None:
        return False
    ids, rows = arrays
    check_count(len(rows), config)
    fields["items"] = rows.tolist()
    if query is not None:
        fields["query"] = ids.tolist()
    return True


def _form(fields: dict[str, Any], field: str, kind: type[_Form]) -> Any:
    """The value of a field; decoded if it is in the form of an array."""
    value = fields.get(field)
    if not isinstance(value, dict) or "values" not in value:
        return value
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        parts = " and ".join(kind.__struct_fields__)
        raise wrong(field, f"{error}. Send {parts} of int32 numbers in base64.") from error
