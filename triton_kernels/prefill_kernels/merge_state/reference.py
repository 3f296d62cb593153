"""merge_state and merge_parts in float64, written as their definition."""

from collections.abc import Sequence

import torch
from torch import Tensor


def merge_states_reference(
    outs: Sequence[Tensor] | Tensor, lses: Sequence[Tensor] | Tensor
) -> tuple[Tensor, Tensor]:
    """`out` and `lse` of `merge_state` and `merge_parts`, both float64."""
    stacked = torch.stack([lse.double() for lse in lses])
    lse = torch.logsumexp(stacked, dim=0)
    weights = torch.exp(stacked - torch.where(lse.isneginf(), 0.0, lse)).unsqueeze(-1)
    parts = torch.stack([out.double() for out in outs])
    return torch.where(weights > 0, weights * parts, 0.0).sum(dim=0), lse
