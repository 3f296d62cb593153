"""Token ids as base64 in the bodies of scoring requests, beside the lists that SGLang knows.

``{"values": "<base64>"}`` stands for the list of a query, and ``{"values": "<base64>", "counts":
"<base64>"}`` for the lists of items: little-endian int32, the items one behind the other and the
length of each. A decimal number of a list takes longer to read than its token to pack.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.wire.arrays import NO_INTS, FlatRows, Int32Array
from sglang_prefill_ext.wire.checks import check_count, wrong
from sglang_prefill_ext.wire.flat import flat_rows, int32_array

MARK = b'"values"'


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
        RequestError: one of the two is in another form, or the bytes are no whole numbers, or do
            not fit together.
    """
    if not isinstance(query, IdsForm) and not isinstance(items, RowsForm):
        return None
    if not isinstance(items, RowsForm) or not isinstance(query, IdsForm | None):
        raise wrong("query, items", "an array beside something else. Send both as arrays.")
    ids = NO_INTS if query is None else int32_array(query.values, field="query.values")
    return ids, flat_rows(items.values, items.counts, field="items")


def put_lists(fields: dict[str, Any], config: PrefillOnlyConfig) -> bool:
    """Put lists in the place of the arrays of a body, which SGLang can read; False without any.

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
    """The value of a field, read if it is an array."""
    value = fields.get(field)
    if not isinstance(value, dict) or "values" not in value:
        return value
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        parts = " and ".join(kind.__struct_fields__)
        raise RequestError(f"{field}: {error}. Send {parts} of int32 numbers in base64.") from error
