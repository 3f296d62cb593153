from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.read_places import ReadPlaces, anchors_of

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=4)


@given(PROMPTS, st.data())
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


def test_anchors_stand_in_every_item_and_not_in_the_query() -> None:
    assert anchors_of([1], [[1, 7, 2, 7], [1, 7]], 7) == [[1, 3], [1]]
    for query, prompts in (([7], [[7, 7]]), ([1], [[1, 7], [1, 2]])):
        with pytest.raises(StockPathTaken, match="unusual_input"):
            anchors_of(query, prompts, 7)
