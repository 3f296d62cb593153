"""Stand-ins for FlashAttention-3 and FlashInfer by their documentation, in float64."""

from __future__ import annotations

import math
import sys
from functools import cache
from itertools import pairwise
from types import ModuleType

import pytest
import torch
from torch import Tensor

from sglang_prefill_ext.attention import prefix_libraries
from tests.unit.attention.reference import attend


def ragged(
    q: Tensor, k: Tensor, v: Tensor, query_bounds: Tensor, key_bounds: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """`out` `[Q, H, Dv]` and `lse` `[Q, H]`, natural log; NaN for queries without keys."""
    assert (query_bounds.dtype, key_bounds.dtype) == (torch.int32, torch.int32)
    assert (int(query_bounds[-1]), int(key_bounds[-1])) == (len(q), len(k))
    out = q.new_full((*q.shape[:2], v.shape[2]), torch.nan)
    lse = torch.full(q.shape[:2], torch.nan, device=q.device)
    for queries, keys in zip(_sequences(query_bounds), _sequences(key_bounds), strict=True):
        for token in range(queries.start, queries.stop if keys.start < keys.stop else 0):
            of_token, lse_of_token = attend(q[token], k[keys], v[keys], scale)
            out[token], lse[token] = of_token.to(q.dtype), lse_of_token.float()
    return out, lse


def _sequences(bounds: Tensor) -> list[slice]:
    return [slice(*pair) for pair in pairwise(bounds.tolist())]


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
    """The log-sum-exp is natural, `[heads, tokens]`, and followed by more."""
    for bounds, longest in ((cu_seqlens_q, max_seqlen_q), (cu_seqlens_k, max_seqlen_k)):
        assert bounds.device == q.device
        assert longest == int(bounds.diff().max())
    assert return_softmax_lse
    assert not causal
    assert softmax_scale is not None
    out, lse = ragged(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale)
    return out, lse.T.contiguous(), None


class BatchPrefillWithRaggedKVCacheWrapper:
    """Plans on the host, then runs any number of times."""

    def __init__(self, float_workspace_buffer: Tensor) -> None:
        assert float_workspace_buffer.dtype == torch.uint8

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
    ) -> None:
        assert (qo_indptr.device.type, kv_indptr.device.type) == ("cpu", "cpu")
        assert not causal
        self._heads = (num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo)
        self._plan = (qo_indptr, kv_indptr, sm_scale)
        self._dtype = q_data_type

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, return_lse: bool = False, lse_base: str = "log2"
    ) -> tuple[Tensor, Tensor]:
        """The log-sum-exp is `[tokens, heads]`, of base 2 unless asked for otherwise."""
        assert return_lse
        assert (q.shape[1], k.shape[1], k.shape[2], v.shape[2]) == self._heads
        assert q.dtype == self._dtype
        out, lse = ragged(q, k, v, *self._plan)
        return out, lse if lse_base == "ln" else lse / math.log(2)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let imports find both stand-ins instead of installed libraries."""
    fa3, flashinfer = ModuleType("sgl_kernel.flash_attn"), ModuleType("flashinfer")
    vars(fa3)["flash_attn_varlen_func"] = flash_attn_varlen_func
    wrapper = BatchPrefillWithRaggedKVCacheWrapper
    vars(flashinfer)[wrapper.__name__] = wrapper
    monkeypatch.setitem(sys.modules, "sgl_kernel", ModuleType("sgl_kernel"))
    monkeypatch.setitem(sys.modules, "sgl_kernel.flash_attn", fa3)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
    # None of the installed library, and none of these is left to other tests.
    monkeypatch.setattr(
        prefix_libraries, "_flash_infer_ring", cache(prefix_libraries._flash_infer_ring.__wrapped__)
    )
