"""A recurrent layer over packed forwards, compared with every prompt on its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sglang_prefill_ext.layout import recurrence_plan
from sglang_prefill_ext.layout.recurrence_plan import Recurrence, RecurrencePlan
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
from sglang_prefill_ext.recurrent.inputs import delta_rule_inputs, state_space_inputs
from sglang_prefill_ext.recurrent.layers import (
    HeldStates,
    LayerRecurrence,
    LayerRule,
    RecurrentInputs,
    by_torch,
)

WIDTH, LAYER = 4, 5
_GENERATOR = torch.Generator().manual_seed(3)
_draw = partial(torch.randn, generator=_GENERATOR)

Prompt = tuple[Tensor, ...]
"""Inputs of the layer: mixed ``[T, C]``, and gates ``[T, HV]``."""


class Kind(NamedTuple):
    """A kind of layer.

    Attributes:
        channels: of its convolution; gates: how many it has.
    """

    channels: int
    gates: int
    rule: LayerRule | None
    recurrence: Recurrence


def _rule(heads: list[tuple[int, int]], dim: int, prepare: Callable[..., object]) -> LayerRule:
    return LayerRule(heads, (2, 3, dim), by_torch(prepare), None)  # type: ignore[arg-type]


KINDS = {
    "delta rule": Kind(
        2 * 4 + 2 * 3,
        2,
        _rule([(1, 4), (1, 4), (2, 3)], 4, partial(delta_rule_inputs, *(_draw(2, 2) / 4))),
        Recurrence(WIDTH),
    ),
    "state space": Kind(
        2 * 3 + 2 * 4,
        1,
        _rule(
            [(2, 3), (1, 4), (1, 4)],
            4,
            partial(state_space_inputs, -_draw(2).exp(), _draw(2) / 4, _draw(2) - 3),
        ),
        Recurrence(WIDTH, grid=8),
    ),
    "convolution": Kind(5, 0, None, Recurrence(WIDTH, carries=False)),
}
CONV_WEIGHT = {name: _draw(kind.channels, WIDTH) for name, kind in KINDS.items()}
CONV_WEIGHT["state space"] /= 4  # its outputs grow with the third power

of_each_kind = pytest.mark.parametrize("name", KINDS)


def drawn(name: str, tokens: int) -> Prompt:
    kind = KINDS[name]
    return _draw(tokens, kind.channels), *(_draw(tokens, 2) for _ in range(kind.gates))


def joined(*parts: Prompt) -> Prompt:
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def cut(prompt: Prompt, tokens: slice) -> Prompt:
    return tuple(each[tokens] for each in prompt)


def run(
    name: str,
    groups: list[GroupSpan],
    inputs: Prompt,
    states: HeldStates,
    stored: int | None = None,
) -> Tensor:
    kind = KINDS[name]
    plan = RecurrencePlan(ForwardLayout(tuple(groups)), kind.recurrence, stored)
    recurrence = LayerRecurrence(plan, states, kernels=False)
    recurrence.bind([torch.from_numpy(array) for array in recurrence.host_arrays()])
    mixed, *gates = inputs
    given_inputs = RecurrentInputs(mixed, CONV_WEIGHT[name], None, kind.rule, gates)
    out = recurrence(LAYER, given_inputs)
    assert out.shape == given_inputs.output_shape
    return out


def span(held: int, fresh: int, rows: list[int]) -> GroupSpan:
    return GroupSpan(held, fresh, np.array(rows, dtype=np.int32))


def alone(name: str, prompt: Prompt) -> Tensor:
    return run(name, [span(0, 0, [len(prompt[0])])], prompt, {})


def agree(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


lens = st.lists(st.integers(1, 9), max_size=4)


@of_each_kind
@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 9), lens), min_size=1, max_size=3))
def test_rows_go_on_from_their_prefixes(name: str, shapes: list[tuple[int, list[int]]]) -> None:
    shapes = [shape for shape in shapes if shape[0] or shape[1]]
    groups, parts, wanted = [], list[Prompt](), list[Tensor]()
    for fresh, rows in shapes:
        prefix, suffixes = drawn(name, fresh), [drawn(name, length) for length in rows]
        groups.append(span(0, fresh, rows))
        parts += [prefix, *suffixes]
        if fresh:
            wanted.append(alone(name, prefix))
        wanted += [alone(name, joined(prefix, suffix))[fresh:] for suffix in suffixes]
    if groups:
        agree(run(name, groups, joined(*parts), {}), torch.cat(wanted))


@of_each_kind
@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=4),
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
)
def test_chunks_of_a_prefix_go_on_from_what_was_held(
    name: str, chunks: list[int], rows: list[int]
) -> None:
    """The last chunk shares its forward with the first row and with another request."""
    prefix, suffixes, other = (
        drawn(name, sum(chunks)),
        [drawn(name, length) for length in rows],
        drawn(name, 6),
    )
    states: HeldStates = {}
    whole, held = alone(name, prefix), 0
    for chunk in chunks[:-1]:
        tokens = slice(held, held + chunk)
        agree(
            run(name, [span(held, chunk, [])], cut(prefix, tokens), states, stored=0), whole[tokens]
        )
        held += chunk
    fresh = chunks[-1]
    groups = [span(0, 4, [2]), span(held, fresh, rows[:1])]
    inputs = joined(other, cut(prefix, slice(held, None)), suffixes[0])
    out = run(name, groups, inputs, states, stored=1)
    agree(out[:6], alone(name, other))
    agree(out[6:], alone(name, joined(prefix, suffixes[0]))[held:])
    held += fresh
    out = run(name, [span(held, 0, rows[1:])], joined(*suffixes[1:]), states)
    agree(out, torch.cat([alone(name, joined(prefix, suffix))[held:] for suffix in suffixes[1:]]))


@of_each_kind
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_held_prefix_may_lie_in_any_pass(
    name: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrence_plan, "MOST_STATES", 1)
    states: HeldStates = {}
    prefix, suffix = drawn(name, 5), drawn(name, 3)
    run(name, [span(0, 5, [])], prefix, states, stored=0)
    others = [[drawn(name, length) for length in (4, 2, 2)] for _ in range(2)]
    groups, parts = [span(0, 4, [2, 2])] * 2, [joined(*each) for each in others]
    wanted = []
    for first, *rows in others:
        ends = [alone(name, joined(first, row))[4:] for row in rows]
        wanted.append(torch.cat([alone(name, first), *ends]))
    groups.insert(place, span(5, 0, [3]))
    parts.insert(place, suffix)
    wanted.insert(place, alone(name, joined(prefix, suffix))[5:])
    agree(run(name, groups, joined(*parts), states), torch.cat(wanted))


@of_each_kind
def test_an_empty_cache_of_states_is_left_alone(name: str) -> None:
    states: HeldStates = {}
    run(name, [span(0, 5, [2, 3])], drawn(name, 10), states)
    assert states == {}
