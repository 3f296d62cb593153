"""Joining two partial attention results by their log-sum-exp."""

import torch
from torch import Tensor


def merge_states(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint key sets, from the attention over each.

    ::

        lse = log(exp(lse_a) + exp(lse_b))
        out = (exp(lse_a) * out_a + exp(lse_b) * out_b) / exp(lse)

    Source: the "recursive attention" composition of FlashInfer (Ye et al. 2025, section 2.2),
    which is the rescaling step of FlashAttention (Dao et al. 2022, algorithm 1) for two blocks.

    Args:
        out_a, out_b: `[T, H, D]`, any floating dtype, the same for both; any strides.
        lse_a, lse_b: `[T, H]` float32, natural log; -inf where the side saw no key.

    Returns:
        `out` `[T, H, D]` in the dtype of the inputs and `lse` `[T, H]` float32. A side of weight
        zero is not used, whatever its `out` holds (NaN included). Where both sides are empty,
        `out` is 0 and `lse` is -inf.
    """
    lse = torch.logaddexp(lse_a, lse_b)
    # sigmoid of the difference is exp(lse_b - lse) without its cancellation; NaN where both are
    # -inf, and the comparisons below then select neither side.
    weight_b = torch.sigmoid(lse_b - lse_a).unsqueeze(-1)
    ...
