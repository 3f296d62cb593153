"""Recurrences in chunks, compared with one token after the other in float64."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from sglang_prefill_ext.layout.recurrence_parts import CHUNK
from sglang_prefill_ext.recurrent.rule import RuleInputs, carry

HEADS, VALUE_HEADS, DIM, VALUE_DIM = 2, 4, 8, 6


KINDS = ("delta", "channels", "no delta")
each_kind = pytest.mark.parametrize("kind", KINDS)


def random_inputs(tokens: int, kind: str, seed: int = 0) -> RuleInputs:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(tokens, *shape, generator=generator)

    q, k = (normalize(draw(HEADS, DIM), dim=-1) for _ in range(2))
    v, skip = draw(2, VALUE_HEADS, VALUE_DIM).unbind(1)
    g = -softplus(draw(VALUE_HEADS, *[DIM] * (kind == "channels"))) / 8
    if kind == "no delta":
        return RuleInputs(q, k, v, g, skip=skip)
    return RuleInputs(q, k, v, g, draw(VALUE_HEADS).sigmoid())


def step_by_step(inputs: RuleInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of one sequence and the state behind it, float64."""
    state, outputs = state.double(), []
    for token in range(len(inputs.v)):
        q, k, v, g = (each[token].double() for each in inputs[:4] if each is not None)
        beta, skip = (None if each is None else each[token].double() for each in inputs[4:])
        q, k = (each.repeat_interleave(VALUE_HEADS // HEADS, dim=0) for each in (q, k))
        state = g.exp().view(VALUE_HEADS, 1, -1) * state
        if beta is not None:
            v = beta[:, None] * (v - torch.einsum("hvd,hd->hv", state, k))
        state = state + torch.einsum("hv,hd->hvd", v, k)
        out = torch.einsum("hvd,hd->hv", state, q)
        outputs.append(out if skip is None else out + skip)
    return torch.stack(outputs), state


def carried(
    inputs: RuleInputs, states: Tensor, slots: Tensor, lens: list[int], *, keep: bool
) -> Tensor:
    """The outputs; of tokens behind those of the sequences, NaN."""
    out = torch.full_like(inputs.v, torch.nan)
    bounds = torch.tensor([0, *accumulate(lens)], dtype=torch.int32)
    carry(inputs, states, slots, bounds, out, keep=keep)
    return out


@each_kind
@pytest.mark.parametrize("keep", [True, False])
def test_every_sequence_starts_from_its_state(keep: bool, kind: str) -> None:
    lens, slots = [1, CHUNK, 3, 2 * CHUNK + 7], torch.tensor([3, 0, 1, 2])
    inputs = random_inputs(sum(lens), kind)
    states = torch.randn(5, VALUE_HEADS, VALUE_DIM, DIM)
    before = states.clone()
    out = carried(inputs, states, slots, lens, keep=keep)
    start = 0
    for slot, length in zip(slots, lens, strict=True):
        tokens = slice(start, start + length)
        wanted, left = step_by_step(inputs.part(tokens), before[slot])
        torch.testing.assert_close(out[tokens].double(), wanted, rtol=0, atol=2e-6)
        torch.testing.assert_close(
            states[slot].double(), left if keep else before[slot].double(), rtol=0, atol=2e-6
        )
        start += length
    assert torch.equal(states[4], before[4])


def test_sequences_may_start_from_the_same_state() -> None:
    inputs, states = random_inputs(6, "delta"), torch.randn(1, VALUE_HEADS, VALUE_DIM, DIM)
    out = carried(inputs, states, torch.zeros(2, dtype=torch.int32), [2, 4], keep=False)
    for tokens in (slice(2), slice(2, 6)):
        wanted, _ = step_by_step(inputs.part(tokens), states[0])
        torch.testing.assert_close(out[tokens].double(), wanted, rtol=0, atol=2e-6)


@each_kind
@pytest.mark.parametrize("keep", [True, False])
def test_sequences_without_tokens_change_nothing(keep: bool, kind: str) -> None:
    inputs, states = random_inputs(9, kind), torch.randn(3, VALUE_HEADS, VALUE_DIM, DIM)
    alone, wanted_states = inputs.part(slice(7)), states.clone()
    wanted = carried(alone, wanted_states, torch.tensor([2, 1]), [4, 3], keep=keep)
    out = carried(inputs, states, torch.tensor([2, 0, 0, 1, 0]), [4, 0, 0, 3, 0], keep=keep)
    assert torch.equal(out[:7], wanted)
    assert out[7:].isnan().all()
    assert torch.equal(states, wanted_states)


@each_kind
def test_a_strong_decay_forgets_without_overflow(kind: str) -> None:
    inputs = random_inputs(CHUNK, kind)
    inputs = inputs._replace(g=torch.full_like(inputs.g, -30.0))
    states = torch.full((1, VALUE_HEADS, VALUE_DIM, DIM), 9.0)
    out = carried(inputs, states, torch.tensor([0]), [CHUNK], keep=True)
    wanted, left = step_by_step(inputs, torch.full_like(states[0], 9.0))
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=2e-6)
    torch.testing.assert_close(states[0].double(), left, rtol=0, atol=2e-6)
