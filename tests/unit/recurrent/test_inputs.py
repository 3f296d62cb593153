"""What rules take, in float32 whatever the dtype of a layer."""

from __future__ import annotations

import torch
from torch.nn.functional import softplus

from sglang_prefill_ext.recurrent.inputs import delta_rule_inputs, state_space_inputs

HEADS, VALUE_HEADS, DIM, VALUE_DIM = 2, 4, 8, 6


def test_of_a_gated_delta_rule() -> None:
    a_log, dt_bias, a, b = torch.randn(4, 3, VALUE_HEADS).bfloat16()
    q, k = torch.randn(2, 3, HEADS, DIM).bfloat16()
    v = torch.randn(3, VALUE_HEADS, VALUE_DIM).bfloat16()
    found = delta_rule_inputs(a_log[0], dt_bias[0], q, k, v, a, b)
    decay = -a_log[0].float().exp() * softplus(a.float() + dt_bias[0].float())
    torch.testing.assert_close(found.g, decay)
    torch.testing.assert_close(found.beta, 1 / (1 + (-b.float()).exp()))
    for one, other, length in zip(found[:2], (q, k), (DIM**-0.5, 1), strict=True):
        other = other.float()
        unit = other / (other.square().sum(-1, True) + 1e-6).sqrt()
        torch.testing.assert_close(one, length * unit)
    assert found.v is v
    assert found.skip is None


def test_of_a_state_space() -> None:
    a, d, dt_bias = torch.randn(3, VALUE_HEADS).bfloat16()
    x = torch.randn(3, VALUE_HEADS, VALUE_DIM).bfloat16()
    b, c = torch.randn(2, 3, HEADS, DIM).bfloat16()
    dt = torch.randn(3, VALUE_HEADS).bfloat16()
    found = state_space_inputs(a, d, dt_bias, x, b, c, dt)
    steps = (1 + (dt.float() + dt_bias.float()).exp()).log()
    torch.testing.assert_close(found.g, a.float() * steps)
    torch.testing.assert_close(found.v, x.float() * steps[..., None])
    torch.testing.assert_close(found.skip, x.float() * d.float()[:, None])
    assert found.q is c
    assert found.k is b
    assert found.beta is None
