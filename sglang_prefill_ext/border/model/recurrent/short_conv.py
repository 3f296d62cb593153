"""Short convolutions of LFM2, as packed forwards compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from sglang_prefill_ext.border.model.packed_batch import PackedForwardBatch
from sglang_prefill_ext.recurrent.layers import RecurrentInputs


def convolved(
    original: Callable[..., Tensor], conv: Any, hidden_states: Tensor, forward_batch: Any
) -> Tensor:
    """AROUND `Lfm2ShortConv.forward` and `Lfm2MoeShortConv.forward`, which read SGLang's pool."""
    if not isinstance(forward_batch, PackedForwardBatch):
        return original(conv, hidden_states, forward_batch)
    before, behind, x = conv.in_proj(hidden_states)[0].chunk(3, dim=-1)
    inputs = RecurrentInputs(before * x, conv.conv_weight, conv.conv_bias)
    out: Tensor = conv.out_proj(behind * forward_batch.recur(conv.layer_idx, inputs))[0]
    return out
