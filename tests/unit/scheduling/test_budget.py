from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.scheduling.budget import ForwardBudget, QueueLoad, load_of
from tests.unit.wire.strategies import PlainRequest

SMALL = st.integers(0, 5)


@st.composite
def budgets(draw: st.DrawFn) -> ForwardBudget:
    per_token, per_row = draw(SMALL), draw(SMALL)
    least = max(1, per_token + per_row)
    return ForwardBudget(draw(st.integers(1, 30)), draw(st.integers(least, 90)), per_token, per_row)


@given(budgets())
def test_the_longest_chunk_and_row_fit_and_one_token_more_does_not(budget: ForwardBudget) -> None:
    for longest, rows in ((budget.longest_chunk(all_read=False), 0), (budget.longest_row, 1)):
        assert budget.fits(longest, rows)
        assert not budget.fits(longest + 1, rows)


@given(budgets(), st.integers(0, 40), st.integers(0, 40))
def test_what_fits_is_within_both_limits(budget: ForwardBudget, tokens: int, rows: int) -> None:
    memory = budget.bytes_per_token * tokens + budget.bytes_per_row * rows
    assert budget.num_bytes(tokens, rows) == memory
    assert budget.fits(tokens, rows) == (tokens <= budget.max_tokens and memory <= budget.max_bytes)


@given(budgets(), st.integers(0, 40), st.integers(0, 40))
def test_the_room_can_be_filled_and_no_more(budget: ForwardBudget, tokens: int, rows: int) -> None:
    assume(budget.fits(tokens, rows))
    room = budget.room(tokens, rows)
    assert budget.fits(tokens + room, rows)
    assert not budget.fits(tokens + room + 1, rows)


def test_memory_is_unlimited_unless_given() -> None:
    assert ForwardBudget(8).fits(8, 10**9)
    assert not ForwardBudget(8).fits(9, 1)


@pytest.mark.parametrize(
    "limits",
    [(0, 10, 1, 1), (5, 3, 2, 2), (5, 10, -1, 1), (5, 10, 1, -1)],
)
def test_a_budget_without_room_for_a_token_is_refused(limits: tuple[int, int, int, int]) -> None:
    with pytest.raises(ConfigError, match=f"max_tokens={limits[0]}, max_bytes={limits[1]} "):
        ForwardBudget(*limits)


def test_a_request_is_loaded_with_its_tokens_reads_and_answer() -> None:
    rows = PlainRequest([1, 2], [[3], [4]], [[7]] * 2, shared_labels=True).pack()
    assert load_of(rows) == QueueLoad(tokens=4, rows=2, bytes=4 * (4 + 2 * 2 + 2))
    assert load_of(rows, num_values=100) == QueueLoad(tokens=4, rows=2, bytes=4 * (4 + 2 * 2 + 100))
