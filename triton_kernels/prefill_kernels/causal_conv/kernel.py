"""The kernel of causal_conv: each program computes some channels of some tokens."""

import triton
import triton.language as tl


# New numbers of tokens must not cause a compilation while serving.
@triton.jit(do_not_specialize=["num_tokens"])
def causal_conv_kernel(
    x,  # [T, C], inputs of all tokens
    x_stride,
    held,  # [W - 1, C], contiguous
    order,  # int32 [T]
    previous,  # int32 [T, W - 1], contiguous
    weight,  # [C, W], contiguous
    bias,  # [C]; None for none
    first,  # [T, FIRST], contiguous
    second,  # [T, SECOND], contiguous
    third,  # [T, C - FIRST - SECOND], contiguous
    num_tokens,
    C: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    W: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    in_token, in_channel = token < num_tokens, channel < C
    own = tl.load(order + token, mask=in_token, other=0)
    total = _product(x + own.to(tl.int64) * x_stride, in_token, weight + W - 1, channel, C, W)
    for place in tl.static_range(W - 1):
        at = tl.load(previous + token * (W - 1) + place, mask=in_token, other=num_tokens + W)
        fresh, early = at < num_tokens, (at >= num_tokens) & (at < num_tokens + W - 1)
        total += _product(x + at.to(tl.int64) * x_stride, fresh, weight + place, channel, C, W)
        total += _product(held + (at - num_tokens) * C, early, weight + place, channel, C, W)
    if bias is not None:
        total += tl.load(bias + channel, mask=in_channel, other=0.0).to(tl.float32)[None, :]
    if SILU:
        total = total * tl.sigmoid(total)
    line = token[:, None].to(tl.int64)
    rest: tl.constexpr = C - FIRST - SECOND
    of_first = in_token[:, None] & (channel < FIRST)
    tl.store(first + line * FIRST + channel, total, mask=of_first)
    if SECOND > 0:
        of_second = in_token[:, None] & (channel >= FIRST) & (channel < FIRST + SECOND)
        tl.store(second + line * SECOND + (channel - FIRST), total, mask=of_second)
    if rest > 0:
        of_third = in_token[:, None] & (channel >= FIRST + SECOND) & in_channel
        tl.store(third + line * rest + (channel - FIRST - SECOND), total, mask=of_third)


@triton.jit
def _product(lines, there, weight, channel, C: tl.constexpr, W: tl.constexpr):
    """Inputs of some tokens times one weight of each channel, float32; 0 for tokens not there."""
    mask = there[:, None] & (channel < C)[None, :]
    inputs = tl.load(lines[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    factors = tl.load(weight + channel * W, mask=channel < C, other=0.0).to(tl.float32)
    return inputs * factors[None, :]
