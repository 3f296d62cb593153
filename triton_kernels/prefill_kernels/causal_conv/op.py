"""Convolve packed prompts in one launch, wherever the tokens before a token lie."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from prefill_kernels.causal_conv.configs import BLOCK_CHANNELS, BLOCK_TOKENS, NUM_WARPS
from prefill_kernels.causal_conv.kernel import causal_conv_kernel
from prefill_kernels.errors import check_launchable, check_tensor, require
from prefill_kernels.prepared import PreparedLaunches, look, place

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


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
    x: Tensor, held: Tensor, taps: Taps, weight: Tensor, bias: Tensor | None, *, num_keys: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Convolve each channel along its prompt, then apply SiLU; sums are float32.

    ::

        out[t] = silu(weight[:, W - 1] * x[order[t]] + bias
                      + sum_i weight[:, i] * [x; held; 0][previous[t, i]])

    Indices are not checked: each must be what `Taps` says.

    Args:
        x: `[T, C]`, any stride between tokens; T >= 1.
        held: `[W - 1, C]`, contiguous, of the dtype of `x`.
        weight: `[C, W]`, contiguous; bias: `[C]`.
        num_keys: channels of queries, and of keys, which come first; the others are values.

    Returns:
        Queries and keys `[T, num_keys]` and values `[T, C - 2 * num_keys]`, contiguous.

    Raises:
        KernelArgumentError: a dtype, shape, stride or device that the kernel cannot take; nothing
            was launched.
    """
    tensors = (x, held, taps.order, taps.previous, weight, bias)
    key = (place(x), num_keys, *map(look, tensors))
    if _CHECKED.get(key) is None:
        _check(x, held, taps, weight, bias, num_keys)
        _CHECKED.keep(key, True)
    tokens, channels = x.shape
    queries, keys = x.new_empty(tokens, num_keys), x.new_empty(tokens, num_keys)
    values = x.new_empty(tokens, channels - 2 * num_keys)
    grid = (triton.cdiv(tokens, BLOCK_TOKENS), triton.cdiv(channels, BLOCK_CHANNELS))
    causal_conv_kernel[grid](
        *(x, x.stride(0), held, taps.order, taps.previous, weight, bias),
        *(queries, keys, values, tokens),
        C=channels,
        KEYS=num_keys,
        W=weight.shape[1],
        BLOCK_T=BLOCK_TOKENS,
        BLOCK_C=BLOCK_CHANNELS,
        num_warps=NUM_WARPS,
    )
    return queries, keys, values


_CHECKED = PreparedLaunches[bool]()


def _check(
    x: Tensor, held: Tensor, taps: Taps, weight: Tensor, bias: Tensor | None, num_keys: int
) -> None:
    check_launchable("x", x)
    check_tensor("x", x, (None, None), _FLOATS, x.device)
    tokens, channels = x.shape
    require(tokens > 0, "x", "without tokens", "a forward has at least one")
    check_tensor("weight", weight, (channels, None), _FLOATS, x.device)
    width = weight.shape[1]
    require(width > 1, "weight", f"of width {width}", "a convolution sees at least two tokens")
    require(
        0 < 2 * num_keys < channels, "num_keys", num_keys, f"it must leave values of {channels}"
    )
    check_tensor("held", held, (width - 1, channels), (x.dtype,), x.device)
    check_tensor("previous", taps.previous, (tokens, width - 1), (torch.int32,), x.device)
    for name, tensor in (("held", held), ("weight", weight), ("previous", taps.previous)):
        require(tensor.is_contiguous(), name, "not contiguous", "call .contiguous()")
    check_tensor("order", taps.order, (tokens,), (torch.int32,), x.device)
    if bias is not None:
        check_tensor("bias", bias, (channels,), _FLOATS, x.device)
