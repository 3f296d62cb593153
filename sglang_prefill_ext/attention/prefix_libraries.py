"""Partial attention over a prefix by attention libraries, in the terms of the merge.

Libraries differ in how they give the log-sum-exp: its base, and the order of its dimensions. Here
it is `[tokens, heads]`, float32 and natural, as everywhere in this package.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sglang_prefill_ext.attention.merge import Partial
from sglang_prefill_ext.config import AttentionWay

HOPPER = 9
_DTYPES = (torch.bfloat16, torch.float16)


def natural_of_base_2(lse: Tensor) -> Tensor:
    """`log(sum(exp(x)))` of `log2(sum(exp(x)))`; -inf, of no key, stays what it is."""
    return lse * math.log(2)


def tokens_first(lse: Tensor) -> Tensor:
    """A view `[tokens, heads]` of `[heads, tokens]`."""
    return lse.transpose(0, 1)


def flash_attention_3(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """`Partial` by FlashAttention-3 as sglang-kernel ships it: natural, `[heads, tokens]`."""
    from sgl_kernel.flash_attn import flash_attn_varlen_func

    out, lse, *_ = flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q=_bounds(q),
        cu_seqlens_k=_bounds(k),
        max_seqlen_q=len(q),
        max_seqlen_k=len(k),
        softmax_scale=scale,
        causal=False,
        return_softmax_lse=True,
    )
    return out, tokens_first(lse)


def flash_infer(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """`Partial` by FlashInfer: base 2, `[tokens, heads]`."""
    from flashinfer import single_prefill_with_kv_cache

    out, lse = single_prefill_with_kv_cache(q, k, v, causal=False, sm_scale=scale, return_lse=True)
    return out, natural_of_base_2(lse)


LIBRARIES: dict[AttentionWay, Partial] = {
    AttentionWay.MERGE_FA3: flash_attention_3,
    AttentionWay.MERGE_FLASHINFER: flash_infer,
}


def library_obstacle(dtype: torch.dtype, device: torch.device) -> str:
    """Return why no library computes attention of that dtype there; empty if they may.

    Whether one is installed, and right, `probe.wrong_library` finds out.
    """
    if device.type != "cuda":
        return f"the model is on {device.type}, not on a CUDA device"
    major, minor = torch.cuda.get_device_capability(device)
    if major != HOPPER:
        return f"the device has compute capability {major}.{minor}, not 9.0"
    return "" if dtype in _DTYPES else f"the model is in {dtype}, not in half precision"


def _bounds(tokens: Tensor) -> Tensor:
    """int32 `[2]`: where the one sequence begins and ends; made on the device, not copied to it."""
    count = len(tokens)
    return torch.arange(0, count + 1, count, dtype=torch.int32, device=tokens.device)
