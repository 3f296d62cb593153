"""Embeddings that replace those of tokens of a call: they are checked and put into one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sglang_prefill_ext.wire.arrays import (
    NO_OVERRIDES,
    EmbeddingKind,
    OverrideArray,
    distinct_overrides,
)
from sglang_prefill_ext.wire.checks import wrong


def checked_overrides(field: str, value: Any, kind: EmbeddingKind) -> OverrideArray:
    """Return embeddings as one matrix ``[n, hidden]``, of float16 or float32.

    Args:
        field: what the user calls them.
        value: such a matrix, or a list of ``[hidden]`` or ``[1, hidden]``.

    Raises:
        RequestError: an embedding is of another width or type, or not finite in the model's dtype.
    """
    listed = isinstance(value, list)
    rows = [np.atleast_2d(each) for each in value] if listed else [np.asarray(value)]
    for number, row in enumerate(rows):
        name = f"{field}[{number}]" if listed else field
        if row.dtype.kind != "f":
            raise wrong(name, f"{row.dtype} numbers. Send float16 or float32.")
        if row.ndim != 2 or row.shape[1] != kind.width or (listed and len(row) != 1):
            raise wrong(
                name,
                f"the shape is {list(row.shape)}. The model's embeddings have {kind.width} "
                "numbers; send one for every placeholder token.",
            )
    matrix = _joined([np.empty((0, kind.width), np.float16), *rows])
    finite = kind.holds(matrix)
    if not finite.all():
        number = int(finite.argmin())
        value = matrix[number][~kind.holds(matrix[number][:, None])][0]
        raise wrong(
            f"{field}[{number}]",
            f"a number is NaN or beyond {kind.dtype}, in which the model computes: {value}. "
            f"Send finite numbers, below {kind.bound:.8g} in size.",
        )
    return matrix


def _joined(matrices: Sequence[OverrideArray]) -> OverrideArray:
    """All rows in one matrix: float16 if all matrices are, else float32."""
    if not matrices:
        return NO_OVERRIDES
    dtype = np.float16 if all(each.dtype == np.float16 for each in matrices) else np.float32
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        joined: OverrideArray = np.concatenate(matrices, dtype=dtype, casting="same_kind")
    return joined


def numbered_overrides(
    groups: Sequence[list[OverrideArray | None]],
) -> tuple[OverrideArray, list[list[list[int] | None]]]:
    """Return one table of all matrices, and the ids that name the rows of each.

    One that comes again is neither copied nor numbered again.
    """
    matrices = {id(each): each for group in groups for each in group if each is not None}
    table, ids = distinct_overrides(_joined([*matrices.values()]))
    parts = np.split(ids, np.cumsum(list(map(len, matrices.values())))[:-1])
    ids_of = {name: part.tolist() for name, part in zip(matrices, parts, strict=False)}
    return table, [
        [None if each is None else ids_of[id(each)] for each in group] for group in groups
    ]
