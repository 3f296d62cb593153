"""Merge partial attention results by their log-sum-exp, and join sinks to the merged ones."""

import torch
from torch import Tensor


def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """As `prefill_kernels.merge_state`, for any strides and floating dtypes."""
    lse = torch.logaddexp(lse_a, lse_b)
    # exp(lse_b) / (exp(lse_a) + exp(lse_b)); NaN where both sides are empty or an lse is NaN. NaN
    # compares false, so neither side is used there. Where both sides are empty the weight becomes
    # 0 below; where an lse is NaN it stays NaN, and makes the result NaN.
    weight_b = torch.sigmoid(lse_b - lse_a).unsqueeze(-1)
    used_a = torch.where(weight_b < 1, out_a.float(), 0.0)
    used_b = torch.where(weight_b > 0, out_b.float(), 0.0)
    weight_b.masked_fill_(lse.isneginf().unsqueeze(-1), 0.0)
    return torch.lerp(used_a, used_b, weight_b).to(out_a.dtype), lse


def join_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> None:
    """Add the sinks to finished attention, in place: one key per head, whose value is 0.

    Call it once, after all merges: the sink is one key of the whole, not one of each part.

    Args:
        out: `[tokens, heads, head_dim]`; scaled down by the weight that the sinks take.
        lse: `[tokens, heads]` float32, natural log, of the keys alone; finite.
        sinks: `[heads]`, any floating dtype.

    Source: attention sinks (Xiao et al. 2024) as gpt-oss has them.
    """
    out.mul_(torch.sigmoid(lse - sinks.float()).unsqueeze(-1))
