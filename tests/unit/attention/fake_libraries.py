"""FlashAttention-3 and FlashInfer as their documentation has them, computed in float64."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tests.unit.attention.reference import attend


def _dense(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """`out` `[Q, H, Dv]` and `lse` `[Q, H]`, natural log."""
    states = [attend(query, k, v, scale) for query in q]
    out, lse = (torch.stack(parts) for parts in zip(*states, strict=True))
    return out.to(q.dtype), lse.float()


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_softmax_lse: bool = False,
) -> tuple[Tensor, Tensor, None]:
    """One sequence; the log-sum-exp is natural, `[heads, tokens]`, and followed by more."""
    for tokens, bounds, longest in (
        (q, cu_seqlens_q, max_seqlen_q),
        (k, cu_seqlens_k, max_seqlen_k),
    ):
        assert bounds.dtype == torch.int32
        assert bounds.tolist() == [0, len(tokens)]
        assert longest == len(tokens)
    assert return_softmax_lse
    assert not causal
    assert softmax_scale is not None
    out, lse = _dense(q, k, v, softmax_scale)
    return out, lse.T.contiguous(), None


def single_prefill_with_kv_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    sm_scale: float | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor]:
    """The log-sum-exp is base 2, `[tokens, heads]`."""
    assert return_lse
    assert not causal
    assert sm_scale is not None
    out, lse = _dense(q, k, v, sm_scale)
    return out, lse / math.log(2)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have both imported instead of the libraries that may be installed."""
    fa3, flashinfer = ModuleType("sgl_kernel.flash_attn"), ModuleType("flashinfer")
    vars(fa3)["flash_attn_varlen_func"] = flash_attn_varlen_func
    vars(flashinfer)["single_prefill_with_kv_cache"] = single_prefill_with_kv_cache
    monkeypatch.setitem(sys.modules, "sgl_kernel", ModuleType("sgl_kernel"))
    monkeypatch.setitem(sys.modules, "sgl_kernel.flash_attn", fa3)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
