"""What recurrent layers read of a forward, compared with going through every prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_prefill_ext.layout import recurrence_plan as module
from sglang_prefill_ext.layout.recurrence_parts import Room, chunks_of
from sglang_prefill_ext.layout.recurrence_plan import Recurrence, RecurrencePlan
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
    previous = RecurrencePlan(forward, Recurrence(width)).previous()
    assert previous.dtype == np.int32
    for _, span, tokens, before in segments(forward):
        for place, token in enumerate(tokens):
            wanted = last(forward, span, before + tokens[:place], width)
            assert previous[token].tolist() == wanted


@given(layouts(), WIDTHS)
def test_the_tail_of_a_prefix_is_its_last_tokens(forward: ForwardLayout, width: int) -> None:
    plan = RecurrencePlan(forward, Recurrence(width))
    for number, span in enumerate(forward.groups):
        start = int(forward.group_starts[number])
        wanted = last(forward, span, [*range(start, start + span.fresh)], width)
        assert plan.tail(number).tolist() == wanted


@st.composite
def plans(draw: st.DrawFn) -> RecurrencePlan:
    forward = draw(layouts(max_groups=8))
    with_prefix = [at for at, span in enumerate(forward.groups) if span.fresh]
    stored = draw(st.none() | st.sampled_from(with_prefix)) if with_prefix else None
    return RecurrencePlan(forward, Recurrence(4, grid=draw(st.sampled_from([0, 3]))), stored)


def sequences(plan: RecurrencePlan) -> list[tuple[list[int], list[int], bool]]:
    """Of each sequence, in the order of computing: its tokens, those before it whose state it
    starts from, and whether its state is kept."""
    order = plan.order()
    tokens = [*range(plan.layout.num_tokens)] if order is None else order.tolist()
    found, done = [], 0
    for each in plan.passes:
        behind = dict[int, list[int]]()
        for part in each.parts:
            assert part.tokens.start == done
            done = part.tokens.stop
            own = tokens[part.tokens]
            assert part.bounds[-1] == len(own)
            for numbers, keep in part.stages:
                before = dict(behind)
                bounds = part.bounds[numbers.start : numbers.stop + 1].tolist()
                slots = part.sequences.slots[numbers].tolist()
                for slot, (start, stop) in zip(slots, pairwise(bounds), strict=True):
                    found.append((own[start:stop], before.get(slot, []), keep))
                    if keep and start < stop:
                        assert 0 < slot < each.num_states
                        assert slot not in behind
                        behind[slot] = own[start:stop]
    assert done == len(tokens)
    assert sorted(tokens) == [*range(done)]
    return found


@settings(deadline=None)
@given(plans(), st.integers(1, 3), st.integers(1, 4))
def test_every_token_is_computed_behind_those_of_its_prompt(
    plan: RecurrencePlan, most_states: int, most_chunks: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_STATES", most_states)
        patch.setattr(module, "MOST_CHUNKS", most_chunks)
        found = sequences(plan)
        for each in plan.passes:
            assert len(each.slots) <= most_states
            assert [*each.slots.values()] == [*range(1, len(each.slots) + 1)]
            for part in each.parts:
                lens, slots = part.sequences
                assert len(part.chunks()) <= most_chunks or (lens > 0).sum() == 1
                if plan.recurrence.grid and len({*slots.tolist()}) > 1:
                    assert len(lens) <= most_states
    check(plan, found)


def check(plan: RecurrencePlan, found: Iterable[tuple[list[int], list[int], bool]]) -> None:
    """Compare what is before each token with the tokens of its prompt."""
    computed = {
        token: before + own[:at] for own, before, _ in found for at, token in enumerate(own)
    }
    for _, _, tokens, before in segments(plan.layout):
        for place, token in enumerate(tokens):
            assert computed[token] == before + tokens[:place]


@settings(deadline=None)
@given(layouts(max_groups=8), st.integers(0, 3), st.integers(0, 3))
def test_plans_of_graphs_are_of_one_size(
    forward: ForwardLayout, more_prefixes: int, more_rows: int
) -> None:
    prefixes = sum(span.prefix_len > 0 for span in forward.groups)
    rows = sum(max(1, span.num_rows) for span in forward.groups)
    room = Room.within(forward.num_tokens, prefixes + more_prefixes, rows + more_rows)
    plan = RecurrencePlan(forward, Recurrence(4), room=room)
    check(plan, sequences(plan))
    (only,) = plan.passes
    (part,) = only.parts
    assert only.num_states == 1 + room.prefixes
    assert (part.num_prefixes, part.num_chunks) == (room.prefixes, room.chunks)
    assert len(part.sequences.lens) == room.prefixes + room.rows
    assert plan.order() is not None


@given(layouts(), st.integers(1, 20))
def test_launches_are_few(forward: ForwardLayout, most_chunks: int) -> None:
    """Prefixes and rows of a pass are one part where this is not too large."""
    plan = RecurrencePlan(forward, Recurrence(4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_CHUNKS", most_chunks)
        (parts,) = [each.parts for each in plan.passes]
    chunks = np.concatenate([chunks_of(part.sequences.lens) for part in parts])
    assert (len(parts) == 1) == (chunks.sum() <= most_chunks or (chunks > 0).sum() == 1)


@given(plans())
def test_only_states_that_are_read_again_are_kept(plan: RecurrencePlan) -> None:
    slots = {group for each in plan.passes for group in each.slots}
    for number, span in enumerate(plan.layout.groups):
        several = span.fresh > 0 and span.num_rows > 1
        assert (number in slots) == (span.held > 0 or several or number == plan.stored)


@given(layouts())
def test_a_convolution_alone_has_no_passes(forward: ForwardLayout) -> None:
    plan = RecurrencePlan(forward, Recurrence(3, carries=False))
    assert plan.passes == ()
    assert plan.order() is None


def test_one_group_lies_in_order_already() -> None:
    assert RecurrencePlan(layout((0, 5, 2, 3)), Recurrence(4)).order() is None
    assert RecurrencePlan(layout((0, 0, 2, 3), (7, 0, 4)), Recurrence(4)).order() is None
    assert RecurrencePlan(layout((0, 5, 1), (0, 6, 2)), Recurrence(4)).order() is None
    assert RecurrencePlan(layout((0, 2, 1, 1), (0, 1, 1, 1)), Recurrence(4)).order() is not None
