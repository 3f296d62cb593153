"""A recurrent layer over packed forwards, compared with every prompt on its own."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sglang_prefill_ext.layout.recurrence_plan import RecurrencePlan
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
from sglang_prefill_ext.recurrent.layers import DeltaInputs, HeldStates, LayerRecurrence

KEY_SHAPE, VALUE_SHAPE, WIDTH, LAYER = (1, 4), (2, 3), 4, 5
CHANNELS = 2 * 4 + 2 * 3
_GENERATOR = torch.Generator().manual_seed(3)
CONV_WEIGHT = torch.randn(CHANNELS, WIDTH, generator=_GENERATOR)
A_LOG, DT_BIAS = torch.randn(2, 2, generator=_GENERATOR) / 4

Prompt = tuple[Tensor, Tensor, Tensor]
"""Inputs of the layer: mixed ``[T, C]``, a and b ``[T, HV]``."""


def drawn(tokens: int) -> Prompt:
    widths = (CHANNELS, VALUE_SHAPE[0], VALUE_SHAPE[0])
    mixed, a, b = (torch.randn(tokens, width, generator=_GENERATOR) for width in widths)
    return mixed, a, b


def joined(*parts: Prompt) -> Prompt:
    mixed, a, b = (torch.cat(each) for each in zip(*parts, strict=True))
    return mixed, a, b


def cut(prompt: Prompt, tokens: slice) -> Prompt:
    mixed, a, b = (each[tokens] for each in prompt)
    return mixed, a, b


def run(
    groups: list[GroupSpan], inputs: Prompt, states: HeldStates, stored: int | None = None
) -> Tensor:
    plan = RecurrencePlan(ForwardLayout(tuple(groups)), WIDTH, stored)
    recurrence = LayerRecurrence(plan, states, kernels=False)
    recurrence.bind([torch.from_numpy(array) for array in recurrence.host_arrays()])
    mixed, a, b = inputs
    return recurrence(
        LAYER,
        DeltaInputs(
            *(mixed, a, b, CONV_WEIGHT, None, A_LOG, DT_BIAS, KEY_SHAPE, VALUE_SHAPE, None)
        ),
    )


def span(held: int, fresh: int, rows: list[int]) -> GroupSpan:
    return GroupSpan(held, fresh, np.array(rows, dtype=np.int32))


def alone(prompt: Prompt) -> Tensor:
    return run([span(0, 0, [len(prompt[0])])], prompt, {})


def agree(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


lens = st.lists(st.integers(1, 9), max_size=4)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 9), lens), min_size=1, max_size=3))
def test_rows_go_on_from_their_prefixes(shapes: list[tuple[int, list[int]]]) -> None:
    shapes = [shape for shape in shapes if shape[0] or shape[1]]
    groups, parts, wanted = [], list[Prompt](), list[Tensor]()
    for fresh, rows in shapes:
        prefix, suffixes = drawn(fresh), [drawn(length) for length in rows]
        groups.append(span(0, fresh, rows))
        parts += [prefix, *suffixes]
        if fresh:
            wanted.append(alone(prefix))
        wanted += [alone(joined(prefix, suffix))[fresh:] for suffix in suffixes]
    if groups:
        agree(run(groups, joined(*parts), {}), torch.cat(wanted))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=4),
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
)
def test_chunks_of_a_prefix_go_on_from_what_was_held(chunks: list[int], rows: list[int]) -> None:
    """The last chunk shares its forward with the first row and with another request."""
    prefix, suffixes, other = drawn(sum(chunks)), [drawn(length) for length in rows], drawn(6)
    states: HeldStates = {}
    whole, held = alone(prefix), 0
    for chunk in chunks[:-1]:
        tokens = slice(held, held + chunk)
        agree(run([span(held, chunk, [])], cut(prefix, tokens), states, stored=0), whole[tokens])
        held += chunk
    fresh = chunks[-1]
    groups = [span(0, 4, [2]), span(held, fresh, rows[:1])]
    inputs = joined(other, cut(prefix, slice(held, None)), suffixes[0])
    out = run(groups, inputs, states, stored=1)
    agree(out[:6], alone(other))
    agree(out[6:], alone(joined(prefix, suffixes[0]))[held:])
    held += fresh
    out = run([span(held, 0, rows[1:])], joined(*suffixes[1:]), states)
    agree(out, torch.cat([alone(joined(prefix, suffix))[held:] for suffix in suffixes[1:]]))


def test_an_empty_cache_of_states_is_left_alone() -> None:
    states: HeldStates = {}
    run([span(0, 5, [2, 3])], drawn(10), states)
    assert states == {}
