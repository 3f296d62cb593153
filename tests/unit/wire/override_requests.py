"""Requests whose first few token ids stand for embeddings of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from sglang_prefill_ext.wire.arrays import OverrideArray
from sglang_prefill_ext.wire.packed import PackedRows
from tests.unit.wire.strategies import VOCAB, PlainRequest

REPLACED = 3
"""Token ids below are replaced by embeddings; small ones, of which hypothesis draws many."""


def embeds(width: int) -> OverrideArray:
    """The embeddings that stand for the ids 0, 1, ...: ``[REPLACED, width]``."""
    return np.random.default_rng(3).standard_normal((REPLACED, width), dtype=np.float32)


orders = st.permutations(range(REPLACED))
"""How a request numbers its embeddings: row 0 of its table replaces token id ``order[0]``."""


def pack_overridden(request: PlainRequest, order: Sequence[int], width: int = 2) -> PackedRows:
    """Pack a request with embeddings in place of the ids that they stand for."""
    rows = request.pack()
    ids = np.arange(VOCAB, dtype=np.int32)
    ids[:REPLACED] = ~np.argsort(order)
    return replace(rows, tokens=ids[rows.tokens], overrides=embeds(width)[list(order)])
