"""causal_conv by torch, on any device and in the dtype of its inputs."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from prefill_kernels.causal_conv.op import Taps


def causal_conv_reference(
    x: Tensor,
    held: Tensor,
    taps: Taps,
    weight: Tensor,
    bias: Tensor | None,
    *,
    sizes: Sequence[int],
    activates: bool = True,
) -> tuple[Tensor, ...]:
    """As `causal_conv`; sums are in the dtype of `weight`."""
    everything = torch.cat([x, held, torch.zeros_like(held[:1])]).to(weight.dtype)
    out = x.index_select(0, taps.order).to(weight.dtype) * weight[:, -1]
    for at, before in enumerate(taps.previous.unbind(1)):
        out += everything.index_select(0, before) * weight[:, at]
    out = out if bias is None else out + bias
    out = (silu(out) if activates else out).to(x.dtype)
    return tuple(part.contiguous() for part in torch.split(out, list(sizes), dim=1))
