"""The gated delta rule in chunks, compared with one token after the other in float64."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from sglang_prefill_ext.layout.recurrence_plan import CHUNK
from sglang_prefill_ext.recurrent.delta_rule import RuleInputs, delta_rule, prepared

HEADS, VALUE_HEADS, DIM, VALUE_DIM = 2, 4, 8, 6


def random_inputs(tokens: int, seed: int = 0) -> RuleInputs:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(tokens, *shape, generator=generator)

    q, k, v = draw(HEADS, DIM), draw(HEADS, DIM), draw(VALUE_HEADS, VALUE_DIM)
    zeros, a, b = torch.zeros(VALUE_HEADS), draw(VALUE_HEADS), draw(VALUE_HEADS)
    inputs = prepared(zeros, zeros, q, k, v, a, b)
    return inputs._replace(g=inputs.g / 8)


def step_by_step(inputs: RuleInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of one sequence and the state behind it, float64."""
    state, outputs = state.double(), []
    for q, k, v, g, beta in zip(*(each.double() for each in inputs), strict=True):
        q, k = (each.repeat_interleave(VALUE_HEADS // HEADS, dim=0) for each in (q, k))
        state = g.exp()[:, None, None] * state
        missing = beta[:, None] * (v - torch.einsum("hvd,hd->hv", state, k))
        state = state + torch.einsum("hv,hd->hvd", missing, k)
        outputs.append(torch.einsum("hvd,hd->hv", state, q) / DIM**0.5)
    return torch.stack(outputs), state


def bounds_of(lens: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lens)], dtype=torch.int32)


@pytest.mark.parametrize("keep", [True, False])
def test_every_sequence_starts_from_its_state(keep: bool) -> None:
    lens, slots = [1, CHUNK, 3, 2 * CHUNK + 7], torch.tensor([3, 0, 1, 2])
    inputs = random_inputs(sum(lens))
    states = torch.randn(5, VALUE_HEADS, VALUE_DIM, DIM)
    before = states.clone()
    out = delta_rule(inputs, states, slots, bounds_of(lens), keep=keep)
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
    inputs, states = random_inputs(6), torch.randn(1, VALUE_HEADS, VALUE_DIM, DIM)
    out = delta_rule(
        inputs, states, torch.zeros(2, dtype=torch.int32), bounds_of([2, 4]), keep=False
    )
    for tokens in (slice(2), slice(2, 6)):
        wanted, _ = step_by_step(inputs.part(tokens), states[0])
        torch.testing.assert_close(out[tokens].double(), wanted, rtol=0, atol=2e-6)


def test_a_strong_decay_forgets_without_overflow() -> None:
    inputs = random_inputs(CHUNK)._replace(g=torch.full((CHUNK, VALUE_HEADS), -30.0))
    states = torch.full((1, VALUE_HEADS, VALUE_DIM, DIM), 9.0)
    out = delta_rule(inputs, states, torch.tensor([0]), bounds_of([CHUNK]), keep=True)
    wanted, left = step_by_step(inputs, torch.full_like(states[0], 9.0))
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=2e-6)
    torch.testing.assert_close(states[0].double(), left, rtol=0, atol=2e-6)


def test_what_the_rule_takes_is_float32() -> None:
    a_log, dt_bias, a, b = torch.randn(4, 3, VALUE_HEADS).bfloat16()
    q, k = torch.randn(2, 3, HEADS, DIM).bfloat16()
    v = torch.randn(3, VALUE_HEADS, VALUE_DIM).bfloat16()
    found = prepared(a_log[0], dt_bias[0], q, k, v, a, b)
    decay = -a_log[0].float().exp() * softplus(a.float() + dt_bias[0].float())
    torch.testing.assert_close(found.g, decay)
    torch.testing.assert_close(found.beta, 1 / (1 + (-b.float()).exp()))
    for one, other in zip(found[:2], (q, k), strict=True):
        other = other.float()
        torch.testing.assert_close(one, other / (other.square().sum(-1, True) + 1e-6).sqrt())
    assert found.v is v
