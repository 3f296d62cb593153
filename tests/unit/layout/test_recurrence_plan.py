"""What recurrent layers read of a forward, compared with going through every prompt."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_prefill_ext.layout.recurrence_plan import RecurrencePlan, Sequences
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
from tests.unit.attention.strategies import layout, layouts

WIDTHS = st.integers(2, 5)


def segments(forward: ForwardLayout) -> Iterator[tuple[int, GroupSpan, list[int], list[int]]]:
    """Number and span of each segment's group, its tokens, and those before it in its prompt."""
    end = 0
    for number, span in enumerate(forward.groups):
        fresh = [*range(end, end + span.fresh)]
        end += span.fresh
        if fresh:
            yield number, span, fresh, []
        for length in span.suffix_lens.tolist():
            yield number, span, [*range(end, end + length)], fresh
            end += length


def last(forward: ForwardLayout, span: GroupSpan, before: list[int], width: int) -> list[int]:
    """The last `width - 1` tokens of a prompt that begins with a held prefix."""
    first_held = forward.num_tokens
    nothing = first_held + width - 1
    held = [nothing - back for back in range(min(span.held, width - 1), 0, -1)]
    return ([nothing] * (width - 1) + held + before)[-(width - 1) :]


@settings(deadline=None)
@given(layouts(), WIDTHS)
def test_previous_tokens_are_those_of_the_prompt(forward: ForwardLayout, width: int) -> None:
    previous = RecurrencePlan(forward, width).previous()
    assert previous.dtype == np.int32
    for _, span, tokens, before in segments(forward):
        for place, token in enumerate(tokens):
            wanted = last(forward, span, before + tokens[:place], width)
            assert previous[token].tolist() == wanted


@given(layouts(), WIDTHS)
def test_the_tail_of_a_prefix_is_its_last_tokens(forward: ForwardLayout, width: int) -> None:
    plan = RecurrencePlan(forward, width)
    for number, span in enumerate(forward.groups):
        start = int(forward.group_starts[number])
        wanted = last(forward, span, [*range(start, start + span.fresh)], width)
        assert plan.tail(number).tolist() == wanted


def of(sequences: Sequences, tokens: list[int]) -> list[tuple[list[int], int]]:
    """The tokens of each sequence, and the state from which it starts."""
    bounds = sequences.bounds.tolist()
    assert np.diff(bounds).tolist() == sequences.lens.tolist()
    parts = [tokens[start:stop] for start, stop in pairwise(bounds)]
    return list(zip(parts, sequences.slots.tolist(), strict=True))


@given(layouts())
def test_prefixes_come_first_and_rows_start_from_their_states(forward: ForwardLayout) -> None:
    plan = RecurrencePlan(forward, 4)
    order = plan.order()
    tokens = [*range(forward.num_tokens)] if order is None else order.tolist()
    cut = int(plan.prefixes.lens.sum())
    slots, prefixes, rows = [0], list[tuple[list[int], int]](), list[tuple[list[int], int]]()
    of_group = dict[int, int]()
    for number, span in enumerate(forward.groups):
        if span.prefix_len:
            slots.append(len(slots))
        of_group[number] = slots[-1] if span.prefix_len else 0
    is_prefix = set[int]()
    for number, span, own, before in segments(forward):
        if not before and span.fresh and number not in is_prefix:
            is_prefix.add(number)
            prefixes.append((own, of_group[number]))
        else:
            rows.append((own, of_group[number]))
    assert plan.num_slots == len(slots)
    assert of(plan.prefixes, tokens[:cut]) == prefixes
    assert of(plan.rows, tokens[cut:]) == rows


def test_one_group_lies_in_order_already() -> None:
    assert RecurrencePlan(layout((0, 5, 2, 3)), 4).order() is None
    assert RecurrencePlan(layout((0, 0, 2, 3), (7, 0, 4)), 4).order() is None
    assert RecurrencePlan(layout((0, 5), (0, 6)), 4).order() is None
