from __future__ import annotations

import numpy as np
import pytest

from sglang_prefill_ext.moe.routing import NEWEST, LayerBalance, RoutingAverage, balance_of


def test_the_rows_of_a_forward_are_those_of_its_tokens_whatever_came_before() -> None:
    average = RoutingAverage(2, 8)
    assert average.rows(720).sum(axis=-1) == pytest.approx([720, 720])
    average.add(np.arange(16).reshape(2, 8))
    assert average.rows(81).sum(axis=-1) == pytest.approx([81, 81])


def test_before_the_first_counts_some_experts_get_several_times_the_mean() -> None:
    (rows,) = RoutingAverage(1, 128).rows(128 * 100)
    assert rows.min() >= 0
    assert rows.max() > 300
    assert np.median(rows) == pytest.approx(100 * np.log(2), rel=0.05)


def test_the_first_counts_are_believed_and_later_ones_averaged() -> None:
    average = RoutingAverage(1, 2)
    average.add(np.array([[30, 10]]))
    assert average.rows(100).tolist() == [[75, 25]]
    average.add(np.array([[0, 7]]))
    assert average.rows(100)[0, 0] == pytest.approx(75 * (1 - NEWEST))


def test_a_layer_without_rows_stays_as_it_is() -> None:
    average = RoutingAverage(2, 2)
    average.add(np.array([[1, 0], [0, 0]]))
    average.add(np.array([[0, 0], [0, 5]]))
    assert average.rows(1).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("shape", [(2, 7), (3, 8), (1, 8), (8,), ()])
def test_counts_of_another_model_are_refused(shape: tuple[int, ...]) -> None:
    average = RoutingAverage(2, 8)
    before = average.rows(1)
    with pytest.raises(ValueError, match="of a model of \\(2, 8\\)"):
        average.add(np.ones(shape))
    assert np.array_equal(average.rows(1), before)


def test_the_balance_of_a_forward() -> None:
    counts = np.array([[64, 1, 63], [0, 0, 0]])
    found = balance_of(counts, [64, 64], 128)
    assert found == [LayerBalance(192 / 128, 384 / 128, 0.5), LayerBalance()]
