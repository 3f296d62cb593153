from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.oneshot.layout import GroupSpan
from sglang_prefill_ext.oneshot.planner import ForwardPlan, plan_forwards
from tests.unit.wire.strategies import PlainRequest, plain_requests

MAX_SUFFIX = 5
REQUESTS = plain_requests(max_prefix=20, max_suffix=MAX_SUFFIX)
BUDGETS = st.integers(MAX_SUFFIX, 40)


def _span(plan: ForwardPlan) -> GroupSpan:
    (span,) = plan.layout.groups
    return span


def _parts(plan: ForwardPlan) -> tuple[list[int], list[list[int]]]:
    """Cut a forward's tokens into its part of the prefix and its suffixes."""
    span, tokens = _span(plan), plan.token_ids.tolist()
    ends = list(accumulate(span.suffix_lens.tolist(), initial=span.fresh))
    assert len(tokens) == ends[-1] == plan.layout.num_tokens
    return tokens[: span.fresh], [tokens[a:b] for a, b in pairwise(ends)]


@given(REQUESTS, BUDGETS)
def test_every_token_is_computed_once_and_in_order(request: PlainRequest, budget: int) -> None:
    prefix: list[int] = []
    suffixes: list[list[int]] = []
    for plan in plan_forwards(request.pack(), budget):
        assert _span(plan).held == len(prefix)
        fresh, rows = _parts(plan)
        prefix += fresh
        suffixes += rows
    assert prefix == request.prefix
    assert suffixes == request.suffixes


@given(REQUESTS, BUDGETS)
def test_no_row_is_computed_before_its_prefix(request: PlainRequest, budget: int) -> None:
    for plan in plan_forwards(request.pack(), budget):
        if plan.layout.num_rows:
            assert _span(plan).held + _span(plan).fresh == len(request.prefix)


@given(REQUESTS, BUDGETS)
def test_forwards_are_as_full_as_the_budget_allows(request: PlainRequest, budget: int) -> None:
    plans = plan_forwards(request.pack(), budget)
    rows_done = 0
    for plan in plans[:-1]:
        rows_done += plan.layout.num_rows
        prefix_left = len(request.prefix) - _span(plan).held - _span(plan).fresh
        next_part = 1 if prefix_left else len(request.suffixes[rows_done])
        assert 0 < plan.layout.num_tokens <= budget < plan.layout.num_tokens + next_part
    assert 0 < plans[-1].layout.num_tokens <= budget


@given(REQUESTS, BUDGETS)
def test_the_prefix_is_held_until_the_last_forward(request: PlainRequest, budget: int) -> None:
    plans = plan_forwards(request.pack(), budget)
    assert [plan.hold_prefix for plan in plans] == [True] * (len(plans) - 1) + [False]


@given(REQUESTS, BUDGETS)
def test_the_labels_of_all_forwards_are_the_requests(request: PlainRequest, budget: int) -> None:
    labels: list[list[int]] = []
    for plan in plan_forwards(request.pack(), budget):
        flat, lens = plan.label_ids.tolist(), plan.label_lens.tolist()
        assert len(lens) == plan.layout.num_rows
        ends = list(accumulate(lens, initial=0))
        assert ends[-1] == len(flat)
        labels += [flat[a:b] for a, b in pairwise(ends)]
    assert labels == request.labels


@given(REQUESTS, BUDGETS)
def test_all_forwards_read_what_the_request_wants(request: PlainRequest, budget: int) -> None:
    for normalised in (False, True):
        rows = replace(request.pack(), normalised=normalised)
        assert {plan.normalised for plan in plan_forwards(rows, budget)} == {normalised}


@given(REQUESTS)
def test_a_request_within_the_budget_is_one_forward(request: PlainRequest) -> None:
    assert len(plan_forwards(request.pack(), request.num_tokens)) == 1


def test_a_long_prefix_is_computed_in_chunks() -> None:
    request = PlainRequest(list(range(10)), [[50], [51, 52], [53]], [[1]] * 3, shared_labels=True)
    spans = [_span(plan) for plan in plan_forwards(request.pack(), 4)]
    assert [(span.held, span.fresh, span.suffix_lens.tolist()) for span in spans] == [
        (0, 4, []),
        (4, 4, []),
        (8, 2, [1]),
        (10, 0, [2, 1]),
    ]


def test_a_prefix_that_fills_the_budget_is_a_forward_of_its_own() -> None:
    request = PlainRequest([1, 2, 3, 4], [[5], [6]], [[1]] * 2, shared_labels=True)
    spans = [_span(plan) for plan in plan_forwards(request.pack(), 4)]
    assert [(span.held, span.fresh, len(span.suffix_lens)) for span in spans] == [
        (0, 4, 0),
        (4, 0, 2),
    ]


@given(REQUESTS, st.integers(1, MAX_SUFFIX))
def test_a_suffix_over_the_budget_is_refused(request: PlainRequest, budget: int) -> None:
    longest = max(map(len, request.suffixes))
    if longest <= budget:
        assert plan_forwards(request.pack(), budget)
        return
    with pytest.raises(PackingError, match=f"{longest} tokens .* budget of {budget}"):
        plan_forwards(request.pack(), budget)
