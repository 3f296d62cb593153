"""Reads, checks and compares token ids in flat arrays, without an object for every token."""

from __future__ import annotations

import numpy as np

from sglang_prefill_ext.wire.arrays import FlatRows, Int32Array, from_bytes
from sglang_prefill_ext.wire.checks import check_prompt, wrong
from sglang_prefill_ext.wire.packed import PackedRows

# Tokens of every row that `shared_len` compares in a step: in the first step, and at most.
_FIRST_LOOK, _LARGEST_LOOK = 16, 1024


def flat_rows(values: bytes, counts: bytes, *, field: str) -> FlatRows:
    """Read rows from little-endian int32 bytes, without copying.

    Args:
        field: what the user calls the rows.

    Raises:
        RequestError: the bytes are no int32 numbers, or the counts do not fit the values.
    """
    rows = FlatRows(
        int32_array(values, field=f"{field}.values"), int32_array(counts, field=f"{field}.counts")
    )
    if len(rows) and int(rows.counts.min()) < 0:
        raise wrong(f"{field}.counts", f"a count is {int(rows.counts.min())}. Send 0 or more.")
    total = int(rows.counts.sum(dtype=np.int64))
    if total != len(rows.values):
        raise wrong(
            f"{field}.counts",
            f"the counts add up to {total}, but there are {len(rows.values)} values. "
            "Send the length of every row.",
        )
    return rows


def int32_array(data: bytes, *, field: str) -> Int32Array:
    """Read little-endian int32 bytes, without copying.

    Raises:
        RequestError: the number of bytes is no multiple of 4.
    """
    if len(data) % 4:
        raise wrong(field, f"{len(data)} bytes are no int32 numbers. Send 4 bytes per number.")
    return from_bytes(data)


def unpacked(rows: PackedRows) -> tuple[Int32Array, FlatRows]:
    """Return the prefix of packed rows and their suffixes."""
    prefix, rest = np.split(rows.tokens, [rows.prefix_len])
    return prefix, FlatRows(rest, rows.suffix_lens)


def check_ids(ids: Int32Array, vocab_size: int, *, field: str) -> None:
    """Refuse ids outside the embedding table; `ids` may be empty.

    Raises:
        RequestError: an id lies outside ``0 <= id < vocab_size``.
    """
    # As unsigned numbers, negative ids are large: one pass finds both kinds.
    if len(ids) and int(ids.view(np.uint32).max()) >= vocab_size:
        check_prompt([int(ids.min()), int(ids.max())], vocab_size, field=field)


def shared_len(rows: FlatRows) -> int:
    """How many leading tokens several rows share, at most all but one of the shortest row.

    -1 if the shortest row is empty.
    """
    shortest, starts = int(np.minimum.reduce(rows.counts)), rows.starts()
    if shortest and ((first := rows.values[starts]) != first[0]).any():
        return 0  # the usual case
    done, width = 0, _FIRST_LOOK
    while done < shortest:
        columns = np.arange(done, min(done + width, shortest))
        table = rows.values[starts[:, None] + columns]
        differ = (table != table[0]).any(axis=0)
        if differ.any():
            return done + int(differ.argmax())
        done, width = done + len(columns), min(2 * width, _LARGEST_LOOK)
    return shortest - 1
