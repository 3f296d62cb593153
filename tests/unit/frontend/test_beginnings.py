from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import PrefixCaching
from sglang_prefill_ext.frontend.beginnings import _LEAST_SAVING, Beginning, shared_beginnings
from sglang_prefill_ext.wire.arrays import Int32Array, int_array
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy

BLOCK = 40
"""Tokens of a block: some blocks together save what a request costs, and few do not."""


def prompt(blocks: list[int], last: int = 9) -> Int32Array:
    return int_array([block for block in blocks for _ in range(BLOCK)] + [last])


def divided(prompts: list[Int32Array]) -> list[Beginning]:
    return shared_beginnings(prompts, "", None)


def shapes(prompts: list[Int32Array]) -> list[tuple[int, list[int]]]:
    return [(part.prefix // BLOCK, part.members) for part in divided(prompts)]


def cost(parts: list[Beginning], prompts: list[Int32Array]) -> int:
    """Tokens that are computed, and those that sending the requests costs."""
    return sum(
        _LEAST_SAVING + part.prefix + sum(len(prompts[each]) - part.prefix for each in part.members)
        for part in parts
    )


def test_prompts_of_a_question_share_it_and_the_task_is_computed_for_each_question() -> None:
    questions = [[1, *[question] * 9] for question in (2, 3, 4)]
    prompts = [prompt(blocks, last) for blocks in questions for last in (5, 6, 7)]
    assert shapes(prompts) == [(10, [0, 1, 2]), (10, [3, 4, 5]), (10, [6, 7, 8])]
    assert shapes(prompts[::3] + prompts[1::3]) == [(10, [0, 3]), (10, [1, 4]), (10, [2, 5])]


def test_long_examples_are_computed_once_and_the_questions_for_each_answer() -> None:
    questions = [[1] * 30 + [question] * 9 for question in (2, 3, 4)]
    prompts = [prompt(blocks, last) for blocks in questions for last in (5, 6, 7)]
    assert shapes(prompts) == [(30, list(range(9)))]


def test_of_groups_that_lie_in_each_other_those_are_taken_that_save_more() -> None:
    questions = [[1, 2, *[question] * 9] for question in (3, 4)]
    prompts = [prompt(blocks, last) for blocks in questions for last in (5, 6, 7)]
    assert shapes([*prompts, prompt([1, 8])]) == [(11, [0, 1, 2]), (11, [3, 4, 5]), (0, [6])]


def test_what_shares_no_more_stays_together() -> None:
    alike = [prompt([1, *[2] * 9], last) for last in (5, 6, 7)]
    others = [prompt([1, block, block], 5) for block in (3, 4)]
    assert shapes([others[0], *alike, others[1]]) == [(10, [1, 2, 3]), (1, [0, 4])]
    # One alone is sent with those that begin like nothing else.
    lone = [prompt([block, block]) for block in (6, 7)]
    assert shapes([lone[0], *alike, others[0], lone[1]]) == [(10, [1, 2, 3]), (0, [0, 4, 5])]


@pytest.mark.parametrize("alike", [2, 3])
def test_equal_prompts_and_beginnings_of_others(alike: int) -> None:
    prompts = [prompt([1, 2, 2])] * alike + [prompt([1, 2]), int_array([1] * BLOCK)]
    assert divided(prompts) == [Beginning([*range(alike + 2)], BLOCK - 1)]
    prompts = [prompt([1, *[2] * 20])] * 3 + [prompt([1, 3, 3])] * 3
    assert [part.members for part in divided(prompts)] == [[0, 1, 2], [3, 4, 5]]


def branches(prompts: list[Int32Array], common: int) -> dict[frozenset[int], int]:
    """Every set of prompts that share more than all do, and how much it shares."""
    found: dict[frozenset[int], int] = {}
    for one in prompts:
        for depth in range(common + 1, len(one)):
            start = one[:depth].tobytes()
            members = frozenset(
                number
                for number, other in enumerate(prompts)
                if len(other) > depth and other[:depth].tobytes() == start
            )
            if len(members) > 1:
                found[members] = max(depth, found.get(members, 0))
    return found


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from([1, 2]), max_size=5), st.sampled_from([7, 8])),
        min_size=2,
        max_size=7,
    ),
    st.sampled_from([1, 2, 5]),
)
def test_no_other_groups_cost_less(endings: list[tuple[list[int], int]], task_blocks: int) -> None:
    """Of all groups that do not lie in each other, with the other prompts in one more."""
    prompts = [prompt([1] * task_blocks + [2 + each for each in own], end) for own, end in endings]
    found = divided(prompts)
    assert sorted(each for part in found for each in part.members) == list(range(len(prompts)))
    for part in found:
        assert len({prompts[each][: part.prefix].tobytes() for each in part.members}) == 1
        assert all(len(prompts[each]) > part.prefix for each in part.members)
    depths = branches(prompts, 0)
    common = depths.pop(frozenset(range(len(prompts))))
    deeper = {members: depth for members, depth in depths.items() if depth > common}

    def saved(chosen: tuple[frozenset[int], ...]) -> int:
        each = (len(own) * (deeper[own] - common) - deeper[own] - _LEAST_SAVING for own in chosen)
        return sum(each)

    best = max(
        saved(chosen)
        for count in range(len(deeper) + 1)
        for chosen in combinations(deeper, count)
        if sum(map(len, chosen)) == len(frozenset().union(*chosen))
    )
    whole = Beginning(list(range(len(prompts))), common)
    assert cost(found, prompts) <= cost([whole], prompts) - best


PASSAGES = [[1, 1, *[passage] * 9] for passage in (2, 3, 4)]


def asked(last: int, policy: PrefixPolicy, first_read: int | None = None) -> list[Beginning]:
    prompts = [prompt(passage, last) for passage in PASSAGES]
    reads = None if first_read is None else [first_read] * len(prompts)
    return shared_beginnings(prompts, "", policy, reads)


def test_a_prompt_that_came_before_has_a_request_of_its_own() -> None:
    policy = PrefixPolicy(PrefixCaching.REPEATED, page_tokens=1)
    assert asked(5, policy) == [Beginning([0, 1, 2], 2 * BLOCK)]
    known = [Beginning([number], 11 * BLOCK, repeated=True) for number in range(3)]
    assert asked(6, policy) == asked(7, policy) == known
    new = prompt([1, 1, *[8] * 9])
    prompts = [prompt(PASSAGES[1], 8), new, prompt(PASSAGES[2], 8)]
    parts = shared_beginnings(prompts, "", policy)
    assert sorted(part.members for part in parts) == [[0], [1], [2]]
    assert {part.repeated for part in parts if part.members != [1]} == {True}


def test_where_its_tokens_are_read_it_does_not_help_that_a_prompt_came_before() -> None:
    policy = PrefixPolicy(PrefixCaching.REPEATED, page_tokens=1)
    for last in (5, 6):
        assert asked(last, policy, first_read=0) == [Beginning([0, 1, 2], 2 * BLOCK)]
    assert [part.prefix for part in asked(7, policy, first_read=300)] == [300] * 3


def test_a_known_question_is_worth_a_request_for_fewer_answers() -> None:
    policy = PrefixPolicy(PrefixCaching.REPEATED, page_tokens=1)
    questions = [[1] * 20 + [question] * 9 for question in (2, 3)]
    prompts = [prompt(question, last) for question in questions for last in (5, 6)]
    whole = Beginning([0, 1, 2, 3], 20 * BLOCK)
    assert shared_beginnings(prompts, "", policy) == [whole]
    known = [Beginning(own, 29 * BLOCK, repeated=True) for own in ([0, 1], [2, 3])]
    assert shared_beginnings(prompts, "", policy) == known
    assert shared_beginnings(prompts, "other", policy) == [whole]
