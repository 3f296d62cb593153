from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.pack import pack_token_ids
from sglang_prefill_ext.frontend.score.placeholders import place_overrides
from sglang_prefill_ext.frontend.score.score_call import ScoreCall, ineligible_reason
from sglang_prefill_ext.wire.arrays import EmbeddingKind, int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.stock_reason import StockReason

VOCAB, PLACEHOLDER, WIDTH = 9, 2, 2
KIND = EmbeddingKind(WIDTH, "float32")
LABELS = Labels(int_array([3, 4]))


@dataclass(frozen=True)
class Prompts:
    """A call, and the meaning of each of its rows: tokens, or embeddings in their places."""

    call: ScoreCall
    rows: list[list[Any]]


@st.composite
def prompts(draw: st.DrawFn) -> Prompts:
    """Calls of few tokens and few embeddings, so that prompts and embeddings are often equal."""
    ids = st.lists(st.integers(0, 3), max_size=4)
    query = draw(ids)
    items = draw(st.lists(ids, min_size=1, max_size=5))
    items = items if query else [[*item, 1] for item in items]
    stacked = draw(st.booleans())

    def drawn(prompt: list[int]) -> list[tuple[float, ...]]:
        vector = st.sampled_from([(0.5, 1.0), (0.5, 2.0)])
        count = prompt.count(PLACEHOLDER)
        return draw(st.lists(vector, min_size=count, max_size=count))

    def meant(prompt: list[int], vectors: list[tuple[float, ...]] | None) -> list[Any]:
        left = iter(vectors or [])
        is_kept = vectors is None
        return [one if one != PLACEHOLDER or is_kept else next(left) for one in prompt]

    def array(vectors: Any) -> Any:
        dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
        return None if vectors is None else np.array(vectors, dtype).reshape(-1, WIDTH)

    kept = [draw(st.integers(0, 3)) == 0 for _ in items]
    if stacked:
        both = [
            None if keep else (drawn(query), drawn(item))
            for item, keep in zip(items, kept, strict=True)
        ]
        given = {
            "stacked_query_item_embed_overrides": [
                None if each is None else array(each[0] + each[1]) for each in both
            ]
        }
        pairs = [(None, None) if each is None else each for each in both]
    else:
        of_query = draw(st.sampled_from([None, drawn(query)]))
        of_items = [None if keep else drawn(item) for item, keep in zip(items, kept, strict=True)]
        listed = None if of_query is None else list(array(of_query))
        given = {
            "query_embed_overrides": listed,
            "item_embed_overrides": [array(each) for each in of_items],
        }
        pairs = [(of_query, each) for each in of_items]
    call = ScoreCall(query, items, [1], embed_override_token_id=PLACEHOLDER, **given)
    rows = [
        meant(query, first) + meant(item, second)
        for item, (first, second) in zip(items, pairs, strict=True)
    ]
    return Prompts(call, rows)


def _meaning(rows: PackedRows) -> list[list[Any]]:
    flat = [
        tuple(rows.overrides[~one].tolist()) if one < 0 else one for one in rows.tokens.tolist()
    ]
    ends = (rows.prefix_len + rows.suffix_lens.cumsum()).tolist()
    return [
        flat[: rows.prefix_len] + flat[a:b]
        for a, b in zip([rows.prefix_len, *ends], ends, strict=False)
    ]


def _common(rows: list[list[Any]]) -> int:
    """Leading entries that all rows share, by looking at every one."""
    shortest = min(map(len, rows))
    return next((k for k in range(shortest) if any(row[k] != rows[0][k] for row in rows)), shortest)


@given(prompts())
def test_a_packed_call_means_what_it_says(given: Prompts) -> None:
    """Rows share what is equal in tokens and embeddings, and no more."""
    call = given.call
    assert ineligible_reason(call) is None
    placed = place_overrides(call, call.query, call.items, KIND)
    rows = pack_token_ids(
        placed.query, placed.items, False, LABELS, VOCAB, overrides=placed.overrides
    )
    assert _meaning(rows) == given.rows
    shortest = min(map(len, given.rows))
    shared = min(_common(given.rows), shortest - 1) if len(given.rows) > 1 else 0
    assert rows.prefix_len == shared
    distinct = {one for row in given.rows for one in row if isinstance(one, tuple)}
    named = {one for one in rows.tokens.tolist() if one < 0}
    assert len(named) == len(distinct)


def test_a_negative_id_of_the_user_names_nothing() -> None:
    placed = place_overrides(CALL, CALL.query, CALL.items, KIND)
    with pytest.raises(RequestError, match="id -3;"):
        pack_token_ids([*placed.query, -3], placed.items, False, LABELS, VOCAB, placed.overrides)


EMBED = np.array([0.5, 1.0], np.float16)
CALL = ScoreCall(
    [1, 2],
    [[2, 3], [4]],
    [1],
    embed_override_token_id=2,
    query_embed_overrides=[EMBED],
    item_embed_overrides=[[EMBED * 2], None],
)


def test_halves_stay_halves_and_equal_ones_are_sent_once() -> None:
    placed = place_overrides(CALL, [1, 2], CALL.items, KIND)
    assert (placed.query, placed.items) == ([1, -1], [[-2, 3], [4]])
    assert placed.overrides.dtype == np.float16
    same = replace(CALL, item_embed_overrides=[[EMBED.reshape(1, 2)], None])
    placed = place_overrides(same, [1, 2], CALL.items, KIND)
    assert (placed.items[0], placed.overrides.tolist()) == ([-1, 3], [[0.5, 1.0]])


def test_a_model_whose_layers_look_tokens_up_is_left_to_sglang() -> None:
    with pytest.raises(StockPathTaken) as taken:
        place_overrides(CALL, CALL.query, CALL.items, replace(KIND, with_tokens=True))
    assert taken.value.reason == StockReason.EMBED_OVERRIDES


def test_an_array_that_items_share_is_not_copied_for_each() -> None:
    """All questions of a decision share one array, whatever its size and their number."""
    shared, items = np.ones((64, 512), np.float32), [[PLACEHOLDER] * 64] * 50
    call = ScoreCall([1], items, [1], False, False, PLACEHOLDER, None, [shared] * len(items))
    tracemalloc.start()
    placed = place_overrides(call, [1], items, EmbeddingKind(512, "float32"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert placed.items == [[-1] * 64] * len(items)
    assert peak < 10 * shared.nbytes


@pytest.mark.parametrize(
    "fields",
    [
        {"query_embed_overrides": []},
        {"query_embed_overrides": [EMBED, EMBED]},
        {"item_embed_overrides": [[], None]},
        {"item_embed_overrides": [None, [EMBED]]},
        {
            "query_embed_overrides": None,
            "item_embed_overrides": None,
            "stacked_query_item_embed_overrides": [None, np.stack([EMBED] * 2)],
        },
    ],
)
def test_other_numbers_of_embeddings_than_placeholders_are_stocks(fields: dict[str, Any]) -> None:
    with pytest.raises(StockPathTaken, match="unusual_input"):
        place_overrides(replace(CALL, **fields), CALL.query, CALL.items, KIND)
