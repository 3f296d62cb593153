"""What recurrent layers make of their projections before the rule, by torch and in float32."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from sglang_prefill_ext.recurrent.rule import RuleInputs

_EPSILON = 1e-6
"""Added to the squared length of queries and keys, as in SGLang's and Hugging Face's code."""


def delta_rule_inputs(
    a_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor
) -> RuleInputs:
    """Of a gated delta rule: queries and keys get length 1, and queries are divided by sqrt(D).

    Yang, Kautz, Hatamizadeh: Gated Delta Networks, arXiv 2412.06464.

    Args:
        a_log, dt_bias: weights of the layer, ``[HV]``. If channels decay by themselves, ``[H, 1]``
            and ``[H, D]``.
        a, b: its projections, ``[T, HV]``; then `a` is ``[T, H, D]``.
    """
    gates = decay_and_step(a_log, dt_bias, a, b)
    return RuleInputs(_unit(q) * q.shape[-1] ** -0.5, _unit(k), v, *gates)


def decay_and_step(a_log: Tensor, dt_bias: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """`RuleInputs.g` and `beta`; arguments as in `delta_rule_inputs`."""
    decay = -a_log.float().exp() * softplus(a.float() + dt_bias.float())
    return decay, b.float().sigmoid()


def state_space_inputs(
    a: Tensor, d: Tensor, dt_bias: Tensor, x: Tensor, b: Tensor, c: Tensor, dt: Tensor
) -> RuleInputs:
    """Of Mamba-2, whose steps ``dt`` are softplus of a projection.

    Dao, Gu: Transformers are SSMs, arXiv 2405.21060.

    Args:
        a, d, dt_bias: weights of the layer, ``[HV]``; a < 0.
        x: ``[T, HV, Dv]``; b, c: ``[T, H, D]``; dt: ``[T, HV]``.
    """
    steps = softplus(dt.float() + dt_bias.float())
    x = x.float()
    return RuleInputs(c, b, steps[..., None] * x, a.float() * steps, skip=d.float()[:, None] * x)


def _unit(vectors: Tensor) -> Tensor:
    vectors = vectors.float()
    return vectors * (vectors.square().sum(-1, keepdim=True) + _EPSILON).rsqrt()
