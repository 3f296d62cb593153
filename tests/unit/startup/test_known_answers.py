"""What the known prompts are, how they run, and what counts as the same answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import PackedForwardError
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.startup.known_answers import (
    LABELS,
    MOST_TOKENS,
    known_requests,
    lengths_of,
    packed_answers,
    prompts_of,
)
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from tests.unit.scheduling.caches import MemoryCache
from tests.unit.scheduling.jobs import IdleExecutor

sizes = st.integers(1, 100_000)


def known(**limits: int) -> list[PackedRows]:
    large = {"vocab_size": 8_000, "vector_width": 0, "longest_prompt": 4_000, "max_tokens": 4_000}
    return known_requests(**(large | limits))


def total_of(requests: Sequence[PackedRows]) -> int:
    return sum(len(rows.tokens) for rows in requests)


# The prompts


@given(sizes, st.integers(0, 4), sizes, sizes)
@example(vocab_size=1, vector_width=0, longest_prompt=1, max_tokens=1)
def test_prompts_keep_every_limit(
    vocab_size: int, vector_width: int, longest_prompt: int, max_tokens: int
) -> None:
    limits = (vocab_size, vector_width, longest_prompt, max_tokens)
    names = ("vocab_size", "vector_width", "longest_prompt", "max_tokens")
    requests = known(**dict(zip(names, limits, strict=True)))
    num_rows = sum(rows.num_rows for rows in requests)
    assert total_of(requests) <= max(num_rows, min(MOST_TOKENS, 3 * max_tokens // 4) + num_rows)
    for rows in requests:
        assert rows.read.num_values(1) == (vector_width or len(set(rows.read.ids.tolist())))
        for ids in (rows.tokens, rows.read.ids):
            assert all(0 <= number < vocab_size for number in ids.tolist())
        assert max(map(len, prompts_of(rows))) <= longest_prompt


def test_prompts_are_the_same_on_every_rank() -> None:
    for one, other in zip(known(), known(), strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.suffix_lens.tolist() == other.suffix_lens.tolist()


@pytest.mark.parametrize(("max_tokens", "most"), [(128, 100), (256, 200), (16_384, MOST_TOKENS)])
def test_prompts_are_of_every_kind(max_tokens: int, most: int) -> None:
    requests = known(max_tokens=max_tokens)
    assert total_of(requests) <= most
    lengths = [len(prompt) for rows in requests for prompt in prompts_of(rows)]
    assert min(lengths) == 1
    assert max(lengths) > most // 3
    assert any(length % 2 for length in lengths)
    assert sorted(bool(rows.prefix_len) for rows in requests) == [False, True, True]
    assert any(own == 1 for prefix, own in lengths_of(requests) if prefix)


def test_a_held_prefix_goes_beyond_the_window() -> None:
    window = 512
    requests, slots, executor = known(window=window), MemoryCache(keeps=False), Echo()
    assert [each.tolist() for rows in requests[:-1] for each in prompts_of(rows)] == [
        each.tolist() for rows in known()[:-1] for each in prompts_of(rows)
    ]
    assert lengths_of(requests)[-2:] == ((2 * window, 2), (2 * window, 27))
    packed_answers(executor, requests, ForwardBudget(4_000), slots)
    shared, *divided = executor.plans
    assert len(shared.layout.groups) == 2
    assert [group.held > window for plan in divided for group in plan.layout.groups] == [
        False,
        True,
    ]


@given(st.integers(0, 4_096), sizes, sizes)
def test_prompts_beyond_a_window_keep_every_limit(
    window: int, longest_prompt: int, max_tokens: int
) -> None:
    requests = known(window=window, longest_prompt=longest_prompt, max_tokens=max_tokens)
    assert max(len(each) for rows in requests for each in prompts_of(rows)) <= longest_prompt
    assert all(rows.prefix_len <= max_tokens for rows in requests)


def test_labels_are_spread_over_the_vocabulary() -> None:
    (labels, *others) = (rows.read.ids.tolist() for rows in known(vocab_size=8_000))
    assert others == [labels, labels]
    assert (labels[0], labels[-1], len(set(labels))) == (0, 7_999, LABELS)


def test_rows_as_prompts() -> None:
    rows = PackedRows(
        np.array([1, 2, 3, 4, 5, 6], np.int32),
        2,
        np.array([1, 3], np.int32),
        Labels(np.array([0], np.int32), np.array([], np.int32)),
    )
    assert [prompt.tolist() for prompt in prompts_of(rows)] == [[1, 2, 3], [1, 2, 4, 5, 6]]
    assert lengths_of([rows]) == ((2, 1), (2, 3))


# The packed path


class Echo(IdleExecutor):
    """Answers each row with its last token, once for each value."""

    def __init__(self) -> None:
        self.plans: list[ForwardPlan] = []
        super().__init__(self.plans.append)

    def launch(self, plan: ForwardPlan) -> Any:
        completion: Any = super().launch(plan)
        last = plan.token_ids[plan.layout.read_positions()]
        values = np.repeat(last, plan.reads.lens).astype(np.float32)
        completion.wait = lambda: values
        return completion


@pytest.mark.parametrize("vector_width", [0, 3])
def test_answers_come_back_row_by_row(vector_width: int) -> None:
    executor, requests = Echo(), known(vector_width=vector_width)
    answers = packed_answers(executor, requests, ForwardBudget(4_000))
    for rows, answer in zip(requests, answers, strict=True):
        last = [prompt[-1] for prompt in prompts_of(rows)]
        assert answer.tolist() == [[token] * (vector_width or LABELS) for token in last]


@pytest.mark.parametrize("max_tokens", [128, 1_000, 16_384])
def test_a_shared_forward_and_a_held_prefix_are_tried(max_tokens: int) -> None:
    executor, requests = Echo(), known(max_tokens=max_tokens)
    slots = MemoryCache(keeps=False)
    packed_answers(executor, requests, ForwardBudget(max_tokens), slots)
    slots.check_idle()
    shared, *divided = executor.plans
    assert len(shared.layout.groups) == 2
    assert [group.held > 0 for plan in divided for group in plan.layout.groups] == [False, True]


def test_prompts_that_see_all_of_themselves_are_asked_whole() -> None:
    executor, requests = Echo(), known(vector_width=3)
    executor.causal = False
    answers = packed_answers(executor, requests, ForwardBudget(4_000))
    last = [prompt[-1] for rows in requests for prompt in prompts_of(rows)]
    assert np.concatenate(answers).tolist() == [[token] * 3 for token in last]
    assert all(group.prefix_len == 0 for plan in executor.plans for group in plan.layout.groups)


@given(sizes, st.integers(1, 10_000))
def test_every_budget_will_do(max_tokens: int, max_bytes: int) -> None:
    budget = ForwardBudget(max_tokens, max_bytes + 30, bytes_per_token=10, bytes_per_row=20)
    executor = Echo()
    requests = known(max_tokens=max_tokens, longest_prompt=budget.longest_row)
    packed_answers(executor, requests, budget)
    assert all(budget.fits(plan.num_tokens, plan.num_rows) for plan in executor.plans)


def test_a_failed_forward_is_an_error() -> None:
    def fail(_plan: ForwardPlan) -> None:
        raise RuntimeError("no such kernel")

    with pytest.raises(PackedForwardError, match="no such kernel"):
        packed_answers(IdleExecutor(fail), known(), ForwardBudget(4_000))


def test_a_failure_that_no_forward_can_follow_is_raised_as_it_is() -> None:
    def fail(_plan: ForwardPlan) -> None:
        raise MemoryError("on this rank")

    def give_up(error: Exception) -> None:
        raise error

    executor = IdleExecutor(fail)
    with pytest.raises(MemoryError, match="on this rank"):
        packed_answers(executor, known(), ForwardBudget(4_000), after_failure=give_up)
