from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.frontend.prompt_batch import PromptGroup, pack_prompts
from sglang_prefill_ext.wire.packed import int_array

BEGINNINGS = [[7] * 40, [7] * 16 + [8] * 30, [9] * 3, [6] * 300, []]


def prompts_of(group: PromptGroup) -> list[list[int]]:
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
    st.booleans(),
)
def test_every_prompt_is_in_one_group_unchanged(prompts: list[list[int]], caching: bool) -> None:
    groups = pack_prompts(
        [int_array(prompt) for prompt in prompts], vector_width=3, caching=caching
    )
    found = {}
    for group in groups:
        assert group.rows.vector_width == 3
        found.update(zip(group.members, prompts_of(group), strict=True))
    assert sum(len(group.members) for group in groups) == len(prompts)
    assert [found[number] for number in range(len(prompts))] == prompts


def shapes(prompts: list[list[int]], *, caching: bool = False) -> list[tuple[int, list[int]]]:
    groups = pack_prompts(
        [int_array(prompt) for prompt in prompts], vector_width=1, caching=caching
    )
    return [(group.rows.prefix_len, group.members) for group in groups]


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
    assert shapes(prompts, caching=True) == [(255, [0]), (255, [2]), (0, [1])]
    assert shapes(prompts) == [(0, [0, 1, 2])]
