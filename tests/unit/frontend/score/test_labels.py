from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.frontend.score.labels import pack_labels

VOCAB = 30
LABELS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4, unique=True)


@given(LABELS, st.integers(1, 5))
def test_one_list_is_shared_by_all_items(labels: list[int], num_items: int) -> None:
    packed = pack_labels(labels, num_items, VOCAB)
    assert packed is not None
    assert packed[0].tolist() == labels
    assert packed[1].tolist() == []


@given(st.lists(LABELS, min_size=1, max_size=5))
def test_a_list_an_item_keeps_its_order(labels: list[list[int]]) -> None:
    packed = pack_labels(labels, len(labels), VOCAB)
    assert packed is not None
    assert packed[0].tolist() == list(chain.from_iterable(labels))
    assert packed[1].tolist() == [len(one) for one in labels]


@pytest.mark.parametrize(
    "labels",
    [
        None,
        [],
        (1, 2),
        "12",
        7,
        [-1],
        [VOCAB],
        [2**70],
        [1, 1],
        [1.0],
        [True],
        ["1"],
        [None],
        [1, [2]],
        [[1], 2],
        [[1]],
        [[1], [2], [3]],
        [[1], []],
        [[1], None],
        [[1], (2,)],
        [[1], [2, 2]],
        [[1], [VOCAB]],
        [[1], [False]],
        [[[1]], [[2]]],
    ],
    ids=repr,
)
def test_everything_unusual_is_left_to_sglang(labels: Any) -> None:
    assert pack_labels(labels, 2, VOCAB) is None
