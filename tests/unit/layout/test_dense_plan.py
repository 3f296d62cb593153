"""The planned calls give every token the keys that it sees by definition."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import example, given, settings

from sglang_prefill_ext.layout import tiling
from sglang_prefill_ext.layout.dense_plan import AttentionPlan, TileBatch, plan_attention
from sglang_prefill_ext.layout.tokens import ForwardLayout
from tests.unit.attention.strategies import layout, layouts, whole_prompts
from tests.unit.layout.visible_keys import Key, keys_seen


def _planned(forward: ForwardLayout, plan: AttentionPlan) -> list[Counter[Key]]:
    names: list[Key] = [(-1, token) for token in range(forward.num_tokens)]
    for index in plan.copied_groups:
        names += [(index, token) for token in range(forward.groups[index].held)]
    seen: list[Counter[Key]] = [Counter() for _ in range(forward.num_tokens)]
    for batch in plan.batches:
        visible = _visible(batch)
        for tile, slot in np.argwhere(~batch.is_padding):
            keys = batch.key_index[tile, visible[tile, slot]]
            seen[batch.query_index[tile, slot]].update(names[key] for key in keys)
    for span in plan.spans:
        keys = [(span.group, token) for token in range(forward.groups[span.group].held)]
        keys += [(-1, token) for token in range(span.fresh.start, span.fresh.stop)]
        for query in range(span.queries.start, span.queries.stop):
            seen[query].update(keys)
    return seen


def _visible(batch: TileBatch) -> np.ndarray:
    num_tiles, num_queries = batch.query_index.shape
    if batch.is_causal:
        visible = np.tri(num_queries, dtype=np.bool_)[None]
    elif batch.is_full:
        visible = np.ones((1, num_queries, batch.key_index.shape[1]), dtype=np.bool_)
    else:
        mask = batch.additive_mask()
        assert set(np.unique(mask)) <= {0.0, -np.inf}
        visible = mask == 0
    return np.broadcast_to(visible, (num_tiles, num_queries, batch.key_index.shape[1]))


@settings(deadline=None)
@given(layouts() | whole_prompts())
@example(layout((300, 40, 30, 30, 1), (0, 300, 80, 70), (10, 0, 5)))
@example(layout((0, 60, *[2] * 50), (0, 61, *[2] * 50), (20, 50, *[3] * 9)))
@example(layout((1, 0, 600, 5), (0, 1, 600, 600)))
@example(layout((0, 600, 5, 5), (700, 600), (600, 0, 600, 600), (9, 0, 600, 600)))
def test_every_token_sees_what_it_should_once(forward: ForwardLayout) -> None:
    assert _planned(forward, plan_attention(forward)) == [*map(Counter, keys_seen(forward))]


@settings(deadline=None)
@given(layouts() | whole_prompts())
def test_every_token_is_the_query_of_one_tile(forward: ForwardLayout) -> None:
    batches = plan_attention(forward).batches
    queries = np.concatenate([batch.query_index[~batch.is_padding] for batch in batches])
    assert sorted(queries.tolist()) == list(range(forward.num_tokens))


@settings(deadline=None)
@given(layouts() | whole_prompts())
def test_padding_is_seen_by_none_of_the_tokens_and_sees_itself(forward: ForwardLayout) -> None:
    for batch in plan_attention(forward).batches:
        own = _visible(batch)[:, :, -batch.query_index.shape[1] :]
        assert own.diagonal(axis1=1, axis2=2).all()
        assert not (own & ~batch.is_padding[:, :, None] & batch.is_padding[:, None, :]).any()


@settings(deadline=None)
@given(layouts())
def test_no_two_spans_overlap(forward: ForwardLayout) -> None:
    spans = plan_attention(forward).spans
    queries = [query for span in spans for query in range(span.queries.start, span.queries.stop)]
    assert len(queries) == len(set(queries))


@settings(deadline=None)
@given(layouts() | whole_prompts())
def test_padding_costs_less_than_the_calls_it_saves(forward: ForwardLayout) -> None:
    for batch in plan_attention(forward).batches:
        num_queries, num_keys = batch.query_index.shape[1], batch.key_index.shape[1]
        outside = num_keys - num_queries
        lens = (~batch.is_padding).sum(axis=1).tolist()
        needed = sum(tiling.count_pairs(length, outside) for length in lens)
        assert len(lens) * num_queries * num_keys - needed <= tiling.CALL_PAIRS


def test_equal_requests_are_one_call_with_one_mask() -> None:
    (batch,) = plan_attention(layout(*[(0, 60, *[2] * 50)] * 20)).batches
    assert batch.query_index.shape == (20, 160)
    assert batch.additive_mask().shape == (1, 160, 160)


def test_rows_of_similar_length_share_a_mask() -> None:
    _, rows = plan_attention(layout((0, 50, 150, 140, 149))).batches
    assert rows.key_index.shape == (3, 200)
    assert rows.additive_mask().shape == (1, 150, 200)


def test_plain_prompts_need_no_mask() -> None:
    (batch,) = plan_attention(layout((0, 0, 62), (0, 40, 20), (0, 0, 61))).batches
    assert batch.is_causal


def test_masks_stay_small_beside_the_tokens() -> None:
    # Joined rows with a long copied prefix: the largest masks per token.
    forward = layout((256, 0, *range(1, 40), *range(40, 1, -1)))
    batches = plan_attention(forward).batches
    mask_bytes = sum(batch.additive_mask().nbytes for batch in batches)
    assert mask_bytes <= 4096 * forward.num_tokens


def test_whole_prompts_of_one_length_need_no_mask() -> None:
    (batch,) = plan_attention(replace(layout((0, 0, *[70] * 5)), causal=False)).batches
    assert batch.is_full
    assert batch.query_index.shape == (5, 70)
