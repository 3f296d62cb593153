"""JSON of large answers, made some at a time, so that other threads run between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder()

ROWS_AT_A_TIME = 16
"""Rows, of up to as many numbers as the vocabulary is large."""


def in_parts(rows: Sequence[Any], at_a_time: int = ROWS_AT_A_TIME) -> Any:
    """Many rows as JSON, for an encoder of `msgspec` to put in their place; few as they are."""
    if len(rows) <= at_a_time:
        return rows
    parts = (rows[start : start + at_a_time] for start in range(0, len(rows), at_a_time))
    return msgspec.Raw(b"[%s]" % b",".join(_ENCODER.encode(part)[1:-1] for part in parts))
