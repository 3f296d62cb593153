"""The sequences of one ragged call give each token the prefix that it sees by definition."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings

from sglang_prefill_ext.layout.ragged_plan import plan_prefixes
from sglang_prefill_ext.layout.tokens import ForwardLayout
from tests.unit.attention.strategies import layout, layouts, whole_prompts


def prefixes_seen(forward: ForwardLayout) -> list[list[int]]:
    """The prefix keys that each token sees, by their numbers."""
    seen: list[list[int]] = []
    first_held = forward.num_tokens
    for group in forward.groups:
        held = [*range(first_held, first_held + group.held)]
        fresh = [*range(len(seen), len(seen) + group.fresh)]
        first_held += group.held
        rows = group.num_tokens - group.fresh
        seen += [held] * group.fresh + [held + fresh] * rows
    return seen


@settings(deadline=None)
@given(layouts() | whole_prompts())
@example(layout((300, 40, 30, 30, 1), (0, 3, 8, 7), (10, 0, 5)))
@example(layout((0, 0, 2), (0, 3), (2, 0, 1)))
def test_every_token_sees_the_prefix_that_is_its(forward: ForwardLayout) -> None:
    plan = plan_prefixes(forward)
    wanted = prefixes_seen(forward)
    found: list[list[int]] = []
    lens = np.diff(plan.query_bounds), np.diff(plan.key_bounds)
    assert lens[0].all()
    for sequence, queries in enumerate(lens[0]):
        keys = plan.key_index[plan.key_bounds[sequence] : plan.key_bounds[sequence + 1]]
        found += [keys.tolist()] * int(queries)
    assert found == wanted
    assert (plan.longest_queries, plan.longest_keys) == (max(lens[0]), max(lens[1]))
    assert plan.without_keys().tolist() == [int(not keys) for keys in wanted]
    assert {plan.query_bounds.dtype, plan.key_bounds.dtype, plan.key_index.dtype} == {
        np.dtype("i4")
    }
