"""Requests to an encoder, whose rows can share no prefix; pure data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.wire.packed import PackedRows


def whole_rows(rows: PackedRows) -> PackedRows:
    """Put the prefix in front of every row, so that each row is a whole prompt.

    On the way to the scheduler a shared beginning travels once all the same.

    Raises:
        PackingError: something else is read than one vector a row.
    """
    if not rows.reads_row_ends:
        raise PackingError(
            "read_lens: an encoder makes one vector of a whole prompt; ask for no places in it"
        )
    prefix = rows.prefix_len
    if not prefix:
        return rows
    ends = np.cumsum(rows.suffix_lens)[:-1]
    parts = [rows.tokens[:prefix]] * (2 * rows.num_rows)
    parts[1::2] = np.split(rows.tokens[prefix:], ends)
    return replace(
        rows,
        tokens=np.concatenate(parts),
        prefix_len=0,
        suffix_lens=rows.suffix_lens + np.int32(prefix),
    )
