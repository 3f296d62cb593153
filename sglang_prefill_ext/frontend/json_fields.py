"""The fields of a JSON body of which some may be in a form of ours."""

from __future__ import annotations

from typing import Any

import msgspec


def fields_of(body: bytes, mark: bytes) -> dict[str, Any]:
    """Return the fields of a body that has `mark` in it; none of any other.

    What is no JSON object, broken, or too deep to read is left to SGLang to refuse.
    """
    if mark not in body:
        return {}
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
