from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.scheduling.budget import (
    SAFETY,
    ForwardBudget,
    MemoryModel,
    Sample,
    fit_memory,
    readout_bytes,
)

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


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**4),
    st.integers(0, 10**4),
    st.integers(100, 4000),
    st.integers(2, 64),
)
def test_what_is_measured_on_the_way_is_expected(
    chunk: int, per_token: int, per_row: int, tokens: int, row_tokens: int
) -> None:
    """Layers grow with the tokens, the read-out with the rows, and a chunk has its fixed size."""

    def sample(tokens: int, rows: int) -> Sample:
        return Sample(tokens, rows, max(chunk, per_token * tokens, per_row * rows))

    model = fit_memory(sample(100, 1), sample(4000, 62), sample(4000, 2000))
    rows = tokens // row_tokens
    assert sample(tokens, rows).peak_bytes <= model.num_bytes(tokens, rows)


@pytest.mark.parametrize(
    ("peaks", "model"),
    [
        ((400, 400, 400), MemoryModel(500, 0, 0)),
        ((400, 4000, 4000), MemoryModel(0, 5, 0)),
        ((400, 4000, 3000), MemoryModel(0, 5, 0)),
        ((400, 400, 800), MemoryModel(495, 0, 5)),
    ],
    ids=["constant", "by tokens", "less for more rows", "by rows"],
)
def test_what_costs_no_memory_is_expected_to_cost_none(
    peaks: tuple[int, int, int], model: MemoryModel
) -> None:
    sizes = ((100, 1), (1000, 1), (1000, 101))
    samples = [Sample(*size, peak) for size, peak in zip(sizes, peaks, strict=True)]
    assert fit_memory(*samples) == model


def test_measured_memory_is_exceeded_by_the_safety_factor_alone() -> None:
    samples = (Sample(100, 1, 1100), Sample(1000, 10, 5000), Sample(1000, 110, 6000))
    model = fit_memory(*samples)
    assert (model.bytes_per_row, model.bytes_per_token) == (13, 6)
    for each in samples:
        exactly = SAFETY * each.peak_bytes
        assert exactly <= model.num_bytes(each.tokens, each.rows) <= exactly + 1200


@pytest.mark.parametrize(
    ("asked_mib", "device", "free_gib", "mib"),
    [
        (7, "cuda", 100, 7),
        (7, "cpu", 100, 7),
        (0, "cpu", 100, 64),
        (0, "cuda", 100, 512),
        (0, "cuda", 4, 256),
        (0, "cuda", 0, 64),
    ],
)
def test_memory_of_the_read_out(asked_mib: int, device: str, free_gib: int, mib: int) -> None:
    assert readout_bytes(asked_mib, device, free_gib << 30) == mib << 20
