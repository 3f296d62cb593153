"""Convolve packed prompts in one launch, wherever the tokens before a token lie."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from prefill_kernels.causal_conv.configs import BLOCK_CHANNELS, BLOCK_TOKENS, NUM_WARPS
from prefill_kernels.causal_conv.kernel import causal_conv_kernel
from prefill_kernels.errors import FLOATS, check_launchable, check_tensor, require
from prefill_kernels.prepared import PreparedLaunches, look, place


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """The tokens that a convolution of width W sees, for T tokens in the order of its output.

    Attributes:
        order: int32 `[T]`, the tokens.
        previous: int32 `[T, W - 1]`, contiguous: the tokens before each in its prompt, the nearest
            last. `T + i` is held input i, and `T + W - 1` stands for no token, an input of zeros.
    """

    order: Tensor
    previous: Tensor


def causal_conv(
    x: Tensor,
    held: Tensor,
    taps: Taps,
    weight: Tensor,
    bias: Tensor | None,
    *,
    sizes: Sequence[int],
    activates: bool = True,
) -> tuple[Tensor, ...]:
    """Convolve each channel along its prompt, then apply SiLU; sums are float32.

    ::

        out[t] = silu(weight[:, W - 1] * x[order[t]] + bias
                      + sum_i weight[:, i] * [x; held; 0][previous[t, i]])

    Indices are not checked: each must be what `Taps` says.

    Args:
        x: `[T, C]`, any stride between tokens; T >= 1.
        held: `[W - 1, C]`, contiguous, of the dtype of `x`.
        weight: `[C, W]`, contiguous; bias: `[C]`.
        sizes: channels of each output; one to three, at least 1, C together.
        activates: whether SiLU is applied.

    Returns:
        The outputs, `[T, size]`, contiguous.

    Raises:
        KernelArgumentError: a dtype, shape, stride or device that the kernel cannot take; nothing
            was launched.
    """
    tensors = (x, held, taps.order, taps.previous, weight, bias)
    key = (place(x), tuple(sizes), *map(look, tensors))
    if _CHECKED.get(key) is None:
        _check(x, held, taps, weight, bias, sizes)
        _CHECKED.keep(key, True)
    tokens, channels = x.shape
    outputs = tuple(x.new_empty(tokens, size) for size in sizes)
    grid = (triton.cdiv(tokens, BLOCK_TOKENS), triton.cdiv(channels, BLOCK_CHANNELS))
    causal_conv_kernel[grid](
        *(x, x.stride(0), held, taps.order, taps.previous, weight, bias),
        *(*outputs, *[None] * (3 - len(outputs)), tokens),
        C=channels,
        FIRST=sizes[0],
        SECOND=sizes[1] if len(sizes) > 1 else 0,
        W=weight.shape[1],
        SILU=activates,
        BLOCK_T=BLOCK_TOKENS,
        BLOCK_C=BLOCK_CHANNELS,
        num_warps=NUM_WARPS,
    )
    return outputs


_CHECKED = PreparedLaunches[bool]()


def _check(
    x: Tensor, held: Tensor, taps: Taps, weight: Tensor, bias: Tensor | None, sizes: Sequence[int]
) -> None:
    check_launchable("x", x)
    check_tensor("x", x, (None, None), FLOATS, x.device)
    tokens, channels = x.shape
    require(tokens > 0, "x", "without tokens", "a forward has at least one")
    check_tensor("weight", weight, (channels, None), FLOATS, x.device)
    width = weight.shape[1]
    require(width > 1, "weight", f"of width {width}", "a convolution sees at least two tokens")
    are_sizes = 0 < len(sizes) <= 3 and min(sizes) > 0 and sum(sizes) == channels
    require(are_sizes, "sizes", sizes, f"they must be one to three parts of {channels}")
    check_tensor("held", held, (width - 1, channels), (x.dtype,), x.device)
    check_tensor("previous", taps.previous, (tokens, width - 1), (torch.int32,), x.device)
    for name, tensor in (("held", held), ("weight", weight), ("previous", taps.previous)):
        require(tensor.is_contiguous(), name, "not contiguous", "call .contiguous()")
    check_tensor("order", taps.order, (tokens,), (torch.int32,), x.device)
    if bias is not None:
        check_tensor("bias", bias, (channels,), FLOATS, x.device)
