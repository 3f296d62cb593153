"""Checks that a user's arguments are of the kinds that are asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from sglang_prefill_ext.errors import PrefillExtError, RequestError

T = TypeVar("T")

_WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
}


def is_a(value: Any, kind: type) -> bool:
    """Whether a value is of a kind or of numpy's like it; bools are no numbers, nor is NaN."""
    if isinstance(value, np.generic):
        value = value.item()
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return isinstance(value, kind)


def checked(
    field: str, value: Any, kind: type[T], error: type[PrefillExtError] = RequestError
) -> T:
    """Return a value as Python's `kind`; raise `error` if it is of another one."""
    if not is_a(value, kind):
        wanted = _WORDS.get(kind, f"an object of {kind.__name__}")
        raise error(f"{field}: {value!r:.80} cannot be used. Give {wanted}.")
    return kind(value) if kind in _WORDS else value  # type: ignore[call-arg]


def is_list(value: Any) -> bool:
    """Whether a value is a list of something; a text is none."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
