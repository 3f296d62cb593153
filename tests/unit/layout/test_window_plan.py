"""The plan has every query once, with exactly the keys of its window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.layout import window_plan
from sglang_prefill_ext.layout.tiling import CALL_PAIRS
from sglang_prefill_ext.layout.tokens import ForwardLayout
from sglang_prefill_ext.layout.window_plan import NEVER, plan_windowed
from tests.unit.attention.strategies import layout, layouts


def prompts_of(forward: ForwardLayout) -> dict[int, list[int]]:
    """Token of the forward -> the keys of its prompt up to itself, numbered as in the plan."""
    prompts = {}
    token, held_key = 0, forward.num_tokens
    for group in forward.groups:
        prefix = list(range(held_key, held_key + group.held))
        held_key += group.held
        for segment, length in enumerate([group.fresh, *group.suffix_lens.tolist()]):
            own = list(range(token, token + length))
            for i in range(length):
                prompts[own[i]] = [*prefix, *own[: i + 1]]
            if segment == 0:
                prefix += own
            token += length
    return prompts


@given(forward=layouts(), window=st.integers(0, 200), data=st.data())
def test_the_keys_of_every_query(forward: ForwardLayout, window: int, data: st.DataObject) -> None:
    tokens = st.integers(0, forward.num_tokens - 1)
    some = data.draw(st.none() | st.sets(tokens, min_size=1).map(sorted))
    queries = None if some is None else np.array(some)
    prompts, seen = prompts_of(forward), {}
    for batch in plan_windowed(forward, window, queries):
        for b, m in np.ndindex(batch.query_index.shape):
            position = batch.query_position[b, m]
            distance = position - batch.key_position[b]
            visible = batch.key_index[b][(distance >= 0) & (distance <= window)].tolist()
            query = int(batch.query_index[b, m])
            assert seen.setdefault(query, visible) == visible  # padding repeats a query
    tokens_asked = range(forward.num_tokens) if some is None else some
    assert seen == {i: prompts[t][-window - 1 :] for i, t in enumerate(tokens_asked)}


@given(forward=layouts(), chunk=st.integers(1, 200), window=st.none() | st.integers(0, 200))
def test_the_keys_of_every_query_in_chunks(
    forward: ForwardLayout, chunk: int, window: int | None
) -> None:
    prompts, seen = prompts_of(forward), {}
    for batch in plan_windowed(forward, window, chunk=chunk):
        for b, m in np.ndindex(batch.query_index.shape):
            first, last = batch.first_position[b, m], batch.query_position[b, m]
            visible = (batch.key_position[b] >= first) & (batch.key_position[b] <= last)
            seen[int(batch.query_index[b, m])] = batch.key_index[b][visible].tolist()
    assert seen == {
        token: prompts[token][
            max(position // chunk * chunk, 0 if window is None else position - window) :
        ]
        for token, position in enumerate(forward.positions().tolist())
    }


@given(forward=layouts(), window=st.integers(0, 200))
@example(layout((0, 0, 65, *[1] * 9)), 64)
def test_padding_costs_less_than_the_calls_it_saves(forward: ForwardLayout, window: int) -> None:
    for batch in plan_windowed(forward, window):
        tiles, most_queries = batch.query_index.shape
        queries = [len(set(tile)) for tile in batch.query_index.tolist()]
        keys = (batch.key_position < NEVER).sum(axis=1)
        padded = tiles * most_queries * batch.key_index.shape[1]
        assert padded - np.dot(queries, keys) <= CALL_PAIRS


def test_windows_of_whole_prompts_are_refused() -> None:
    with pytest.raises(PackingError, match="sliding window"):
        plan_windowed(replace(layout((0, 0, 3)), causal=False), 2)


def test_memory_of_a_call_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_plan, "CALL_KEYS", 300)
    forward = layout((0, 100, *[20] * 30), (0, 0, 400))
    sizes = [batch.key_index.shape for batch in plan_windowed(forward, 50)]
    assert len(sizes) > 10
    assert all(tiles * keys <= 300 for tiles, keys in sizes)


def test_rows_of_one_length_are_one_call() -> None:
    (batch,) = plan_windowed(layout((0, 0, *[20] * 60)), 50)
    assert batch.query_index.shape == batch.key_index.shape == (60, 20)
    assert (batch.key_position < NEVER).all()
