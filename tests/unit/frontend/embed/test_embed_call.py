from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.embed.embed_call import (
    EmbedCall,
    Positional,
    place_of_vectors,
)
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.wire.arrays import EmbeddingKind, int_array

ONE, TWO = np.array([1.0, 2.0], np.float32), np.array([3.0, 4.0], np.float32)
PROMPTS = [int_array([9, 7, 7]), int_array([7]), int_array([9, 7])]
CALL = EmbedCall([], False, None, placeholder=7, embeds=[[ONE, TWO], None, [ONE]])


def test_embeddings_take_the_places_of_placeholders_in_order() -> None:
    placed, table = place_of_vectors(CALL, PROMPTS, EmbeddingKind(2, "float32"))
    assert [ids.tolist() for ids in placed] == [[9, -1, -2], [7], [9, -1]]
    assert table.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert [ids.tolist() for ids in PROMPTS] == [[9, 7, 7], [7], [9, 7]]


def test_embeddings_with_positions_stand_there() -> None:
    call = EmbedCall([], False, None, positional=[Positional(ONE[None], [2]), None, None])
    placed, table = place_of_vectors(call, PROMPTS, EmbeddingKind(2, "float32"))
    assert [ids.tolist() for ids in placed] == [[9, 7, -1], [7], [9, 7]]
    assert table.tolist() == [[1.0, 2.0]]


def test_other_numbers_of_embeddings_are_stocks_and_other_widths_are_refused() -> None:
    with pytest.raises(StockPathTaken, match="unusual_input"):
        place_of_vectors(
            replace(CALL, embeds=[[ONE], None, None]), PROMPTS, EmbeddingKind(2, "float32")
        )
    with pytest.raises(RequestError, match=r"embed_overrides\[0\]: the shape is"):
        place_of_vectors(CALL, PROMPTS, EmbeddingKind(3, "float32"))


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=4))
def test_embeddings_are_put_where_their_positions_say(prompts: list[list[int]]) -> None:
    positional = [
        SimpleNamespace(positions=places, embeds=np.array([[0, k] for k in places], np.float32))
        if (places := [k for k, one in enumerate(prompt) if one == 2])
        else None
        for prompt in prompts
    ]
    arrays = [int_array(prompt) for prompt in prompts]
    call = EmbedCall([], False, None, positional=positional)
    placed, table = place_of_vectors(call, arrays, EmbeddingKind(2, "float32"))
    for before, after in zip(prompts, placed, strict=True):
        for place, (old, new) in enumerate(zip(before, after.tolist(), strict=True)):
            if old == 2:
                assert table[~new].tolist() == [0, place]
            else:
                assert new == old
    assert [array.tolist() for array in arrays] == prompts
