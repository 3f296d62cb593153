import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.modelmaker.quality import ndcg

grades = st.lists(st.integers(0, 3), min_size=1, max_size=30)
places = st.integers(1, 40)


def test_worked_example() -> None:
    # DCG 7 + 3/log2(3) + 7/2 + 0 + 1/log2(6) + 3/log2(7); ideal order 3 3 2 2 1 0.
    assert ndcg([3, 2, 3, 0, 1, 2], 6) == pytest.approx(13.84826 / 14.59539, abs=1e-5)


def test_only_the_first_places_count() -> None:
    assert ndcg([3, 0, 0, 2], 1) == 1.0
    assert ndcg([0, 3], 1) == 0.0


@pytest.mark.parametrize("relevance", [[], [0, 0, 0]])
def test_nothing_relevant_is_zero(relevance: list[int]) -> None:
    assert ndcg(relevance, 10) == 0.0


@given(grades, places)
def test_bounded_and_one_for_the_ideal_order(relevance: list[int], k: int) -> None:
    assert 0.0 <= ndcg(relevance, k) <= 1.0
    if any(relevance):
        assert ndcg(sorted(relevance, reverse=True), k) == 1.0


@given(grades, places, st.data())
def test_moving_a_better_item_up_never_hurts(
    relevance: list[int], k: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(relevance) - 1))
    second = data.draw(st.integers(first, len(relevance) - 1))
    better = list(relevance)
    better[first], better[second] = sorted((relevance[first], relevance[second]), reverse=True)
    assert ndcg(better, k) >= ndcg(relevance, k) - 1e-12
