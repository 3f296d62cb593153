"""Sizes of graphs, which forwards they take, and how these are padded."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sglang_prefill_ext.forward.graphs.plan import GraphUse, eager_reason, pad, padded, sizes_up_to
from sglang_prefill_ext.layout.recurrence_parts import Room
from sglang_prefill_ext.layout.recurrence_plan import Recurrence, RecurrencePlan
from sglang_prefill_ext.layout.tokens import ForwardLayout
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.graph_room import ForwardSize, graph_holds, groups_of, states_of
from sglang_prefill_ext.scheduling.planner import ForwardPlan, plan_forward
from sglang_prefill_ext.scheduling.split import split_request
from tests.unit.attention.strategies import layout, layouts
from tests.unit.scheduling.jobs import request


def holds(size: int, forward: ForwardLayout, *, carries: bool = False) -> bool:
    return graph_holds(size, ForwardSize.of(forward.groups), carries=carries)


def plan(adapter: str = "") -> ForwardPlan:
    rows = replace(request([1, 2], [3], [4, 5]), adapter=adapter).pack()
    return plan_forward(split_request(rows, ForwardBudget(100)))


@given(st.integers(1, 5000))
def test_sizes_ascend_in_small_steps_up_to_the_largest(max_tokens: int) -> None:
    sizes = sizes_up_to(max_tokens)
    assert sizes[-1] == max_tokens
    assert sizes[0] == min(16, max_tokens)
    for size, larger in pairwise(sizes):
        assert size < larger <= size * (9 / 8 if size >= 256 else 3 / 2)


def test_the_sizes_of_a_usual_limit() -> None:
    small = [16, 24, 32, 48, 64, 96, 128, 192]
    assert sizes_up_to(300) == [*small, 256, 288, 300]
    assert sizes_up_to(1024) == [*small, *range(256, 512, 32), *range(512, 1025, 64)]


@given(layouts(max_groups=6), st.integers(1, 600), st.integers(0, 2**32 - 1))
def test_padding_changes_nothing_of_what_is_padded(
    forward: ForwardLayout, tokens: int, seed: int
) -> None:
    assume(forward.num_rows and holds(tokens, forward))
    ids = np.random.default_rng(seed).integers(0, 99, forward.num_tokens, dtype=np.int32)
    padded, padded_ids, _ = pad(forward, ids, tokens)
    own = forward.num_tokens
    assert padded.num_tokens == len(padded_ids) == tokens
    assert len(padded.groups) <= groups_of(tokens) + 1
    assert np.array_equal(padded_ids[:own], ids)
    assert not padded_ids[own:].any()
    assert np.array_equal(padded.positions()[:own], forward.positions())
    assert np.array_equal(padded.segment_starts()[:own], forward.segment_starts())
    assert np.array_equal(padded.segment_starts()[own:], np.arange(own, tokens))
    assert not padded.positions()[own:].any()  # so the model need not have so many positions


def test_padding_of_whole_prompts_is_whole_prompts() -> None:
    forward = replace(layout((0, 0, 3, 2)), causal=False)
    padded, _, read_at = pad(forward, np.zeros(5, np.int32), 8)
    assert padded.last_keys().tolist() == [2, 2, 2, 4, 4, 5, 6, 7]
    assert read_at.tolist() == [0, 3, 0, 0, 0, 0, 0, 0]


@given(layouts(max_groups=6), st.integers(1, 600))
def test_the_ends_of_rows_are_read_and_behind_them_something(
    forward: ForwardLayout, tokens: int
) -> None:
    assume(forward.num_rows and holds(tokens, forward))
    _, _, read_at = pad(forward, np.zeros(forward.num_tokens, np.int32), tokens)
    assert read_at.shape == (tokens,)
    assert np.array_equal(read_at[: forward.num_rows], forward.row_ends)
    assert not read_at[forward.num_rows :].any()


@pytest.mark.parametrize(
    ("forward", "held"),
    [
        (layout((0, 36, *[1] * 28)), True),
        (layout((0, 37, *[1] * 28)), False),  # one token too many
        (layout((0, 10, *[1] * 54)), True),  # rows of one token
        (layout((0, 0, *[1] * 64)), True),
        (layout(*[(0, 1, 1)] * 4), True),
        (layout(*[(0, 1, 1)] * 5), False),  # one group too many
    ],
)
def test_a_size_holds_so_many_tokens_and_groups(forward: ForwardLayout, held: bool) -> None:
    assert holds(64, forward) is held


@pytest.mark.parametrize(
    ("forward", "held"),
    [
        (layout((0, 100, *[1] * 16)), True),
        (layout((0, 100, *[1] * 17)), False),  # one row too many
        (layout(*[(0, 1, 1)] * 4), True),
        (layout(*[(0, 1, 1)] * 5), False),  # one prefix too many
    ],
)
def test_a_size_has_so_many_states(forward: ForwardLayout, held: bool) -> None:
    assert holds(256, forward, carries=True) is held
    assert holds(256, forward)


@given(layouts(max_groups=6), st.integers(1, 600))
def test_a_graph_has_room_for_all_that_it_holds(forward: ForwardLayout, tokens: int) -> None:
    assume(holds(tokens, forward, carries=True))
    prefixes, rows = states_of(tokens)
    room = Room.within(tokens, prefixes, rows + 1)
    plan = RecurrencePlan(padded(forward, tokens, in_one_row=True), Recurrence(4), room=room)
    ((part,),) = [each.parts for each in plan.passes]
    assert part.tokens == slice(0, tokens)
    assert [len(each) for each in part.host_arrays()] == [
        *(room.prefixes + room.rows + 1, room.prefixes + room.rows),
        *(room.chunks, room.prefixes + room.rows + 1),
    ]


def test_a_plain_forward_is_replayed() -> None:
    assert eager_reason(plan(), most_held=0) == ""


@pytest.mark.parametrize(
    ("most_held", "reason"), [(0, "held_prefix"), (63, "held_prefix"), (64, "")]
)
def test_a_cached_prefix_is_read_in_a_replay_up_to_a_length(most_held: int, reason: str) -> None:
    """The prefix has 64 of 160 tokens, like an instruction with which all requests begin."""
    rows = request(range(96), *[[1, 2]] * 32).pack()
    (piece,) = split_request(rows, ForwardBudget(1000))
    behind = plan_forward([piece.behind(64)])
    assert behind.num_tokens == 96
    assert eager_reason(behind, most_held=most_held) == reason


def test_what_differs_from_a_plain_forward_runs_eagerly() -> None:
    def reason(forward: ForwardPlan) -> str:
        return eager_reason(forward, most_held=0)

    plain = plan()
    (group,) = plain.layout.groups
    reads_more = ForwardLayout((replace(group, read_lens=np.array([1, 2], np.int32)),))
    assert reason(replace(plain, stores=[[7]])) == "kept_prefix"
    assert reason(replace(plain, override_at=np.array([1]))) == "overrides"
    assert reason(plan("a")) == "adapter"
    assert reason(replace(plain, layout=reads_more)) == "many_reads"


def test_the_report_is_json() -> None:
    use = GraphUse((16, 24), bytes=5, forwards=Counter({"graph": 2, "adapter": 1}))
    assert json.loads(json.dumps(use.as_dict())) == {
        "sizes": [16, 24],
        "obstacle": "",
        "bytes": 5,
        "seconds": 0.0,
        "forwards": {"graph": 2, "adapter": 1},
    }
