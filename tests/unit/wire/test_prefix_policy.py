from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import PrefixCaching
from sglang_prefill_ext.wire import prefix_policy
from sglang_prefill_ext.wire.arrays import Int32Array, int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.prefix_policy import (
    BLOCK_TOKENS,
    LEAST_ROW_TOKENS,
    ROW_BLOCK_TOKENS,
    PrefixPolicy,
    RowMemory,
)
from sglang_prefill_ext.wire.read import Labels

PAGES = st.sampled_from([1, 7, 16, 64])
PREFIXES = st.builds(
    lambda numbers, length: int_array((numbers * 80)[:length]),
    st.lists(st.integers(0, 2), min_size=1, max_size=2),
    st.integers(1, 80),
)


def tokens(length: int, first: int = 0) -> Int32Array:
    return np.arange(first, first + length, dtype=np.int32)


@given(st.sampled_from(PrefixCaching), PAGES, st.lists(PREFIXES, max_size=8))
def test_only_whole_pages_of_the_prefix_are_committed(
    caching: PrefixCaching, page: int, prefixes: list[Int32Array]
) -> None:
    policy = PrefixPolicy(caching, page)
    for prefix in prefixes:
        committed = policy.tokens_to_commit(prefix)
        assert 0 <= committed <= len(prefix)
        assert committed % page == 0


@given(PAGES, st.lists(PREFIXES, max_size=8))
def test_repeated_commits_the_blocks_that_came_before_the_last_as_short_as_it_is(
    page: int, prefixes: list[Int32Array]
) -> None:
    """And what goes on behind them, unless something else did before."""
    policy = PrefixPolicy(PrefixCaching.REPEATED, page)
    behind: dict[tuple[int, ...], int] = {}
    went_on: set[tuple[int, ...]] = set()
    for prefix in prefixes:
        stops = [*range(BLOCK_TOKENS, len(prefix), BLOCK_TOKENS), len(prefix)]
        blocks = [tuple(prefix[:stop].tolist()) for stop in stops if stop >= BLOCK_TOKENS]
        known = max((block for block in blocks if block in behind), key=len, default=())
        grown = len(known)
        whole = len(prefix) // BLOCK_TOKENS * BLOCK_TOKENS
        if 0 < len(known) < whole and known not in went_on:
            grown = max(grown, len(prefix) - behind[known])
            went_on.add(known)
        assert policy.tokens_to_commit(prefix) == grown // page * page
        for block in blocks:
            behind.setdefault(block, max(0, whole - len(block)))


def turn(*parts: tuple[int, int]) -> Int32Array:
    """A prompt of parts, each with a length and the first of its tokens."""
    return np.concatenate([tokens(length, first) for length, first in parts])


def test_a_prompt_that_grows_is_kept_as_a_whole_from_its_second_turn_on() -> None:
    policy = PrefixPolicy(PrefixCaching.REPEATED, 1)
    turns = [tokens(length) for length in (40, 70, 75, 100, 170)]
    assert [policy.tokens_to_commit(each) for each in turns] == [0, 70, 64, 100, 170]


def test_a_question_at_the_end_of_each_turn_is_not_kept() -> None:
    policy, question = PrefixPolicy(PrefixCaching.REPEATED, 1), (32, 5_000)
    turns = [turn((length, 0), question) for length in (64, 112, 192)]
    assert [policy.tokens_to_commit(each) for each in turns] == [0, 112, 192]


def test_prompts_behind_a_system_prompt_do_not_grow_but_for_one() -> None:
    policy = PrefixPolicy(PrefixCaching.REPEATED, 1)
    lengths = (48, 96, 96, 200)
    prompts = [turn((64, 0), (length, 1_000 * n)) for n, length in enumerate(lengths, 1)]
    assert [policy.tokens_to_commit(each) for each in prompts] == [0, 112, 64, 64]


def test_what_came_with_another_adapter_did_not_come_before() -> None:
    policy = PrefixPolicy(PrefixCaching.REPEATED, 1)
    asked = ["", "a", "b", "a", ""]
    committed = [policy.tokens_to_commit(tokens(37), adapter) for adapter in asked]
    assert committed == [0, 0, 0, 37, 37]


@pytest.mark.parametrize(("page", "committed"), [(1, 37), (16, 32), (64, 0)])
def test_never_and_always(page: int, committed: int) -> None:
    for _ in range(2):
        assert PrefixPolicy(PrefixCaching.NEVER, page).tokens_to_commit(tokens(37)) == 0
        assert PrefixPolicy(PrefixCaching.ALWAYS, page).tokens_to_commit(tokens(37)) == committed


@pytest.mark.parametrize(("caching", "committed"), [("never", 0), ("repeated", 32), ("always", 32)])
def test_a_marked_prefix_need_not_come_twice(caching: str, committed: int) -> None:
    policy = PrefixPolicy(PrefixCaching(caching), 16)
    assert policy.tokens_to_commit(tokens(37), keep=True) == committed


def test_a_marked_prefix_is_remembered_like_any_other() -> None:
    policy = PrefixPolicy(PrefixCaching.REPEATED, 1)
    policy.tokens_to_commit(tokens(32), keep=True)
    assert policy.tokens_to_commit(tokens(32)) == 32


def test_a_block_counts_with_all_that_comes_before_it() -> None:
    policy = PrefixPolicy(PrefixCaching.REPEATED, 1)
    assert policy.tokens_to_commit(tokens(48)) == 0
    other_start = np.concatenate([tokens(16, first=900), tokens(32, first=16)])
    assert policy.tokens_to_commit(other_start) == 0
    other_end = np.concatenate([tokens(32), tokens(16, first=900)])
    assert policy.tokens_to_commit(other_end) == 32


@pytest.mark.parametrize("place", [0, 15, 16, 31])
def test_every_token_of_a_block_counts(place: int) -> None:
    policy = PrefixPolicy(PrefixCaching.REPEATED, 1)
    policy.tokens_to_commit(tokens(32))
    other = tokens(32)
    other[place] = 900
    assert policy.tokens_to_commit(other) == place // BLOCK_TOKENS * BLOCK_TOKENS


def test_less_than_a_block_is_not_worth_keeping() -> None:
    policy = PrefixPolicy(PrefixCaching.REPEATED, 1)
    assert [policy.tokens_to_commit(tokens(15)) for _ in range(2)] == [0, 0]


def test_a_last_block_is_recognised_only_where_it_ends_alike() -> None:
    policy = PrefixPolicy(PrefixCaching.REPEATED, 1)
    lengths = [31, 33, 31, 30]
    assert [policy.tokens_to_commit(tokens(length)) for length in lengths] == [0, 33, 31, 16]


def test_the_longest_unseen_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_policy, "REMEMBERED_BLOCKS", 2)
    policy = PrefixPolicy(PrefixCaching.REPEATED, 1)
    old, kept, new = (tokens(16, first=first) for first in (0, 100, 200))
    assert [policy.tokens_to_commit(each) for each in (kept, old, kept)] == [0, 0, 16]
    assert policy.tokens_to_commit(new) == 0  # forgets `old`
    assert policy.tokens_to_commit(kept) == 16
    assert policy.tokens_to_commit(old) == 0


def test_prefixes_that_come_together_do_not_make_each_other_known() -> None:
    policy = PrefixPolicy(PrefixCaching.REPEATED, page_tokens=1)
    together = [tokens(48), tokens(64)]
    assert policy.tokens_kept(together) == [0, 0]
    assert policy.tokens_kept([*together, tokens(80)]) == [48, 64, 80]
    assert PrefixPolicy(PrefixCaching.NEVER, 1).tokens_kept(together) == [0, 0]
    assert PrefixPolicy(PrefixCaching.ALWAYS, 1).tokens_kept(together) == [48, 64]


CAPACITY = 10_000


def rows_of(prefix: Int32Array, *rows: Int32Array, adapter: str = "") -> PackedRows:
    lens = int_array([*map(len, rows)])
    labels = Labels(int_array([1]))
    return PackedRows(np.concatenate([prefix, *rows]), len(prefix), lens, labels, adapter=adapter)


def seen(memory: RowMemory, rows: PackedRows) -> list[int]:
    found = memory.tokens_seen(rows, 0)
    return [0] * rows.num_rows if found is None else found.tolist()


@pytest.mark.parametrize("prefix_len", [0, 3, 64, 200])
def test_rows_are_recognised_among_others_in_whole_blocks(prefix_len: int) -> None:
    memory, prefix = RowMemory(CAPACITY), tokens(prefix_len)
    one, two, three, four = (tokens(40, first=first) for first in (1000, 2000, 3000, 4000))
    assert memory.tokens_seen(rows_of(prefix, one, two), 0) is None
    length = (prefix_len + 39) // ROW_BLOCK_TOKENS * ROW_BLOCK_TOKENS
    assert seen(memory, rows_of(prefix, three, two, four)) == [0, length, 0]
    assert seen(memory, rows_of(prefix, one, four)) == [length, length]
    assert memory.tokens_seen(rows_of(prefix + 1, one + 7, four + 7), 0) is None


def test_where_rows_end_alike_their_end_may_be_another_next_time() -> None:
    memory, empty = RowMemory(CAPACITY), tokens(0)
    items = [tokens(48, first=first) for first in (1000, 2000)]
    queries = [tokens(length, first=first) for length, first in ((9, 500), (30, 600))]
    for query, expected in zip(queries, (0, 48), strict=True):
        rows = rows_of(empty, *[np.concatenate([item, query]) for item in items])
        assert seen(memory, rows) == [expected] * 2


@given(st.integers(0, 70), st.lists(PREFIXES, min_size=2, max_size=5), st.integers(0, 40))
def test_what_was_seen_ends_inside_the_row_and_is_worth_a_block(
    prefix_len: int, rows: list[Int32Array], end: int
) -> None:
    memory, ending = RowMemory(CAPACITY), tokens(end, first=700)
    packed = rows_of(tokens(prefix_len), *[np.concatenate([row, ending]) for row in rows])
    assert memory.tokens_seen(packed, 0) is None
    for length, row in zip(seen(memory, packed), rows, strict=True):
        assert length == 0 or prefix_len + LEAST_ROW_TOKENS <= length < prefix_len + len(row) + end
        assert length % ROW_BLOCK_TOKENS == 0


def test_what_is_read_of_a_row_has_to_be_computed() -> None:
    memory, rows = RowMemory(CAPACITY), [tokens(40), tokens(60, first=1000)]
    read = dataclasses.replace(rows_of(tokens(0), *rows), read_lens=int_array([7, 20]))
    assert memory.tokens_seen(read, 0) is None
    assert seen(memory, read) == [32, 40]


@pytest.mark.parametrize(("least", "expected"), [(0, [100, 120]), (36, [100, 120]), (37, [0, 120])])
def test_short_rows_are_not_recognised(least: int, expected: list[int]) -> None:
    memory, prefix, rows = RowMemory(CAPACITY), tokens(64), [tokens(40), tokens(60, first=1000)]
    assert memory.tokens_seen(rows_of(prefix, *rows), least) is None
    found = memory.tokens_seen(rows_of(prefix, *rows), least)
    assert found is not None
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("prefix_len", "row_len", "expected"),
    [(40, 21, 0), (40, 45, 84), (70, 60, 128), (64, 60, 0), (0, 60, 0), (0, 70, 68)],
)
def test_rows_are_worth_the_whole_pages_of_their_own(
    prefix_len: int, row_len: int, expected: int
) -> None:
    memory = RowMemory(CAPACITY, page_tokens=64)
    rows = [tokens(row_len, first=first) for first in (1000, 2000)]
    assert memory.tokens_seen(rows_of(tokens(prefix_len), *rows), 0) is None
    assert seen(memory, rows_of(tokens(prefix_len), *rows)) == [expected] * 2


def test_rows_of_another_adapter_or_with_another_prefix_did_not_come_before() -> None:
    memory, prefix, rows = (
        RowMemory(CAPACITY),
        tokens(64),
        [tokens(40, first=n) for n in (1000, 2000)],
    )
    assert memory.tokens_seen(rows_of(prefix, *rows, adapter="a"), 0) is None
    assert memory.tokens_seen(rows_of(prefix, *rows), 0) is None
    assert memory.tokens_seen(rows_of(prefix[::-1], *rows), 0) is None
    assert seen(memory, rows_of(prefix, *rows, adapter="a")) == [100, 100]


def test_rows_that_cannot_have_prefixes_of_their_own_are_not_remembered() -> None:
    memory, rows = RowMemory(CAPACITY), [tokens(40, first=n) for n in (1000, 2000)]
    alone, short = rows_of(tokens(0), rows[0]), rows_of(tokens(64), *[row[:16] for row in rows])
    read_prefix = dataclasses.replace(rows_of(tokens(64), *rows), prefix_reads=2)
    overridden = rows_of(tokens(0), *rows)
    overridden.tokens[3] = -1
    overridden = dataclasses.replace(overridden, overrides=np.ones((1, 4), dtype=np.float32))
    for packed in (alone, short, read_prefix, overridden):
        assert [memory.tokens_seen(packed, 0) for _ in range(3)] == [None] * 3


def test_rows_are_forgotten_only_after_as_many_others_as_the_cache_holds() -> None:
    memory = RowMemory(capacity=8 * 36)
    pairs = [
        rows_of(tokens(0), *[tokens(40, first=100 * (2 * pair + row)) for row in range(2)])
        for pair in range(3)
    ]
    none, both = [0, 0], [36, 36]
    assert [seen(memory, pairs[n]) for n in (0, 1, 0)] == [none, none, both]
    assert [seen(memory, pairs[n]) for n in (2, 0, 1)] == [none, both, none]
