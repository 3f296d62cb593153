from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.moe.blocks import BlockTable, Entry, padded_rows

BLOCKS = st.sampled_from([16, 32, 64, 128, 256])
TABLES = st.dictionaries(st.integers(1, 5000), BLOCKS, min_size=1, max_size=12)
TOKENS = st.integers(1, 20_000)


@given(st.lists(st.integers(0, 700), min_size=1, max_size=40), BLOCKS)
def test_padded_rows_are_those_of_blocks_filled_one_by_one(rows: list[int], block: int) -> None:
    expected = 0
    for count in rows:
        while count > 0:
            expected, count = expected + block, count - block
    assert padded_rows(np.array(rows), block) == expected


def test_every_layer_is_counted_by_itself() -> None:
    assert padded_rows(np.array([[1, 65], [0, 0], [64, 64]]), 64).tolist() == [192, 0, 128]


@given(TABLES, TOKENS)
def test_the_first_candidate_is_the_entry_that_sglang_would_take(
    table: dict[int, int], tokens: int
) -> None:
    stock = min(table, key=lambda each: abs(each - tokens))  # as in try_get_optimal_moe_config
    assert BlockTable(table).candidates(tokens)[0] == Entry(stock, table[stock])


@given(TABLES, TOKENS)
def test_every_block_of_the_table_has_its_nearest_entry(table: dict[int, int], tokens: int) -> None:
    found = BlockTable(table).candidates(tokens)
    assert sorted(entry.block for entry in found) == sorted(set(table.values()))
    for entry in found:
        assert table[entry.tokens] == entry.block
        others = (abs(each - tokens) for each, block in table.items() if block == entry.block)
        assert abs(entry.tokens - tokens) == min(others)


@given(TABLES, st.integers(1, 300), st.integers(0, 300))
def test_nothing_else_can_be_reached(table: dict[int, int], least: int, more: int) -> None:
    blocks = BlockTable(table)
    found = {e for n in range(least, least + more + 1) for e in blocks.candidates(n)}
    assert blocks.reachable(least, least + more) == tuple(sorted(found))


def test_a_table_without_entries_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an entry"):
        BlockTable({})
