"""JSON bodies, in so far as SGLang's own reading of them matters."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What orjson, with which SGLang reads bodies, takes for an integer."""


def fields_of(body: bytes, mark: bytes) -> dict[str, Any]:
    """Return the fields of a body that has `mark` in it; none of any other.

    Nor of what is no JSON object: that is SGLang's to refuse.
    """
    if mark not in body:
        return {}
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
