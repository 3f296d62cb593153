"""Rows of a request to an encoder as whole prompts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.startup.known_answers import prompts_of
from sglang_prefill_ext.wire.packed import NO_INTS, PackedRows, int_array
from sglang_prefill_ext.wire.whole_rows import whole_rows


def packed(prefix: int, lens: list[int]) -> PackedRows:
    tokens = np.arange(prefix + sum(lens), dtype=np.int32)
    return PackedRows(tokens, prefix, int_array(lens), NO_INTS, NO_INTS, vector_width=3)


@given(st.integers(0, 20), st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_every_row_is_the_prompt_that_it_was(prefix: int, lens: list[int]) -> None:
    rows = packed(prefix, lens)
    whole = whole_rows(rows)
    assert whole.prefix_len == 0
    assert whole.suffix_lens.dtype == np.int32
    assert whole.num_prompt_tokens == rows.num_prompt_tokens
    for found, wanted in zip(prompts_of(whole), prompts_of(rows), strict=True):
        assert found.tolist() == wanted.tolist()


def test_without_a_prefix_nothing_is_copied() -> None:
    rows = packed(0, [2, 3])
    assert whole_rows(rows) is rows


def test_places_inside_prompts_are_refused() -> None:
    reads = replace(packed(2, [3]), read_lens=int_array([2]), label_lens=int_array([1, 1]))
    with pytest.raises(PackingError, match="places"):
        whole_rows(reads)
