from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import PrefixCaching
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.prompt_batch import PackedGroup, ReadPlaces, pack_prompts
from sglang_prefill_ext.frontend.score.score_frontend import lone_prompt
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy
from sglang_prefill_ext.wire.read import Labels

BEGINNINGS = [[7] * 40, [7] * 16 + [8] * 30, [9] * 3, [6] * 300, []]


def prompts_of(group: PackedGroup) -> list[list[int]]:
    rows = group.rows
    prefix = rows.tokens[: rows.prefix_len].tolist()
    found, place = [], rows.prefix_len
    for length in rows.suffix_lens.tolist():
        found.append(prefix + rows.tokens[place : place + length].tolist())
        place += length
    return found


@given(
    st.lists(
        st.builds(
            lambda start, end: start + end,
            st.sampled_from(BEGINNINGS),
            st.lists(st.integers(0, 9), min_size=1, max_size=6),
        ),
        min_size=1,
        max_size=12,
    ),
    st.none() | st.builds(PrefixPolicy, st.sampled_from(PrefixCaching), st.just(1)),
)
def test_every_prompt_is_in_one_group_unchanged(
    prompts: list[list[int]], policy: PrefixPolicy | None
) -> None:
    ids = [int_array(prompt) for prompt in prompts]
    pack_prompts(ids[: len(ids) // 2], vector_width=3, policy=policy)
    groups = pack_prompts(ids, vector_width=3, policy=policy)
    found = {}
    for group in groups:
        assert group.rows.read.width == 3
        found.update(zip(group.members, prompts_of(group), strict=True))
    assert sum(len(group.members) for group in groups) == len(prompts)
    assert [found[number] for number in range(len(prompts))] == prompts


def groups_of(prompts: list[list[int]], policy: PrefixPolicy | None = None) -> list[PackedGroup]:
    return pack_prompts([int_array(prompt) for prompt in prompts], vector_width=1, policy=policy)


def shapes(
    prompts: list[list[int]], policy: PrefixPolicy | None = None
) -> list[tuple[int, list[int]]]:
    return [(group.rows.prefix_len, group.members) for group in groups_of(prompts, policy)]


def test_beginnings_worth_a_message_get_one() -> None:
    first, second = [1] * 150, [2] * 150
    prompts = [[*first, 3], [*second, 4], [5, 6], [*first, 7], [*second, 8], [5, 9]]
    assert shapes(prompts) == [(150, [0, 3]), (150, [1, 4]), (1, [2, 5])]


def test_a_beginning_that_saves_little_gets_no_message() -> None:
    assert shapes([[1] * 100 + [2], [3], [1] * 100 + [4]]) == [(0, [0, 2, 1])]


def test_one_token_stays_in_every_row() -> None:
    assert shapes([[1] * 150, [1] * 150]) == [(149, [0, 1])]
    assert shapes([[1], [1, 2]]) == [(0, [0, 1])]
    assert shapes([[1, 2, 3]]) == [(0, [0])]


def test_a_long_prompt_goes_alone_where_a_cache_may_know_its_beginning() -> None:
    prompts = [[1] * 255 + [2], [3] * 200, [4] * 255 + [5]]
    assert shapes(prompts, policy()) == [(255, [0]), (255, [2]), (0, [1])]
    assert shapes(prompts) == [(0, [0, 1, 2])]


def policy(caching: PrefixCaching = PrefixCaching.REPEATED) -> PrefixPolicy:
    return PrefixPolicy(caching, page_tokens=1)


def kept(prompt: list[int], policy: PrefixPolicy | None) -> tuple[int, bool]:
    """How a single prompt is sent: its prefix, and whether that is to be kept."""
    (group,) = groups_of([prompt], policy)
    return group.rows.prefix_len, group.keep_prefix


@pytest.mark.parametrize("length", [18, 128, 255])
def test_a_short_prompt_has_a_prefix_once_it_came_before(length: int) -> None:
    prompt, seen = list(range(length)), policy()
    found = [kept(prompt, seen) for _ in range(3)]
    assert found == [(0, False), (length - 1, True), (length - 1, True)]
    assert kept([*prompt[:16], 7_000], seen) == (16, True)
    assert kept([7_000, *prompt[1:]], seen) == (0, False)
    assert kept(prompt, None) == (0, False)


def test_less_than_a_block_does_not_come_again() -> None:
    short, seen = list(range(16)), policy()  # the last token is never in the prefix
    assert [kept(short, seen) for _ in range(3)] == [(0, False)] * 3


def test_without_memory_prefixes_are_kept_at_once_or_never() -> None:
    prompt = list(range(100))
    assert kept(prompt, policy(PrefixCaching.ALWAYS)) == (99, True)
    assert [kept(prompt, seen) for seen in [policy(PrefixCaching.NEVER)] * 2] == [(0, False)] * 2


def test_among_others_a_prompt_that_came_before_must_save_its_message() -> None:
    seen = policy()
    prompts = [list(range(100)), list(range(500, 650)), [5, 6]]
    assert shapes(prompts, seen) == [(0, [0, 1, 2])]
    assert shapes(prompts, seen) == [(149, [1]), (0, [0, 2])]


def rows_of(*lens: int, prefix: int = 0, **fields: Any) -> PackedRows:
    tokens = int_array(range(prefix + sum(lens)))
    read = fields.pop("read", Labels(int_array([1])))
    return PackedRows(tokens, prefix, int_array(lens), read, **fields)


def test_a_packed_prompt_is_given_the_same_prefix() -> None:
    seen, rows = policy(), rows_of(100)
    first, options = lone_prompt(rows, RequestOptions(priority=3), seen, 1_000)
    assert (first, options) == (rows, RequestOptions(priority=3))
    again, options = lone_prompt(rows, RequestOptions(priority=3), seen, 1_000)
    assert (again.prefix_len, again.suffix_lens.tolist()) == (99, [1])
    assert again.tokens.tolist() == rows.tokens.tolist()
    assert options == RequestOptions(priority=3, keep_prefix=True)
    marked, _ = lone_prompt(rows_of(90), RequestOptions(keep_prefix=True), policy(), 1_000)
    assert marked.prefix_len == 89
    long, options = lone_prompt(rows_of(300), RequestOptions(), seen, 1_000)
    assert (long.prefix_len, options.keep_prefix) == (299, False)


@pytest.mark.parametrize(
    "rows",
    [
        rows_of(100, 100),
        rows_of(50, 50, prefix=50),
        rows_of(100, read_lens=int_array([2])),
        rows_of(100, overrides=np.ones((1, 4), dtype=np.float32)),
        rows_of(1_001),
    ],
    ids=["several", "sharing", "read_inside", "overridden", "too_long"],
)
def test_other_packed_rows_stay_as_they_are(rows: PackedRows) -> None:
    seen = policy(PrefixCaching.ALWAYS)
    assert lone_prompt(rows, RequestOptions(), seen, 1_000) == (rows, RequestOptions())


READ_PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=4)


@given(READ_PROMPTS, st.data())
def test_a_prompt_is_read_at_its_places_and_between(
    prompts: list[list[int]], data: st.DataObject
) -> None:
    places = [
        sorted(data.draw(st.sets(st.integers(0, len(prompt) - 1), min_size=1)))
        for prompt in prompts
    ]
    reads = ReadPlaces.of(list(map(len, prompts)), places)
    wanted, start = reads.wanted.tolist(), 0
    for prompt, own, lens in zip(prompts, places, reads.lens.tolist(), strict=True):
        first = len(prompt) - lens
        mine = wanted[start : start + lens]
        assert [first + number for number, each in enumerate(mine) if each] == own
        assert mine[0]
        start += lens
    assert start == len(wanted)
    assert reads.first == min(own[0] for own in places)
