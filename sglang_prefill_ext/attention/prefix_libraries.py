"""Attention over the prefixes of a forward by FlashAttention-3 or FlashInfer, with log-sum-exp.

A layer makes one call for all groups, so the host's time for a library does not grow with the
number of requests in a forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import cycle
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeldKV, LayerInputs
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.layout.ragged_plan import RaggedPlan, plan_prefixes
from sglang_prefill_ext.layout.tokens import ForwardLayout

HOPPER = 9
_DTYPES = (torch.bfloat16, torch.float16)
_WORKSPACE_BYTES = 128 << 20
"""What FlashInfer recommends."""
_WRAPPERS = 4
"""Of each plan of a forward; more than there are forwards in flight."""

RaggedAttend: TypeAlias = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""``(q [T,H,D], k [K,KH,D], v [K,KH,Dv], scale) -> out [T,H,Dv], lse [T,H]``, natural log, of a
`RaggedPlan`; the values of tokens that see no key are undefined."""


class LibraryPrefixes:
    """Attention of all tokens of a forward over their prefixes, by a library.

    Libraries need contiguous keys. So every layer copies those of held prefixes from their slots
    and those of fresh prefixes from its inputs.
    """

    def __init__(self, layout: ForwardLayout, way: AttentionWay) -> None:
        self._plan = plan_prefixes(layout)
        self._library = LIBRARIES[way]

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        plan = self._plan
        return [plan.query_bounds, plan.key_bounds, plan.key_index, plan.without_keys()]

    def bind(self, arrays: Sequence[Tensor], page_table: Tensor | None) -> None:
        query_bounds, key_bounds, self._key_index, without_keys = arrays
        self._page_table = page_table
        self._without_keys = without_keys.bool()[:, None]
        self._attend = self._library(self._plan, query_bounds, key_bounds)

    def forward(self, inputs: LayerInputs, cached: HeldKV | None) -> tuple[Tensor, Tensor] | None:
        """Return `out` `[T, H, Dv]` and `lse` `[T, H]`; None if no token has a prefix.

        `lse` is -inf for tokens without a prefix.

        Args:
            cached: keys and values of the pool's slots, of which the page table names some.
        """
        if not len(self._key_index):
            return None
        pools = (None, None) if cached is None else cached
        fresh = (inputs.k, inputs.v)
        k, v = (self._keys(new, pool) for new, pool in zip(fresh, pools, strict=True))
        out, lse = self._attend(inputs.q, k, v, inputs.scale)
        return out, lse.masked_fill(self._without_keys, -torch.inf)

    def _keys(self, fresh: Tensor, pool: Tensor | None) -> Tensor:
        """Keys (or values) in the order of the plan's `key_index`."""
        if pool is not None and self._page_table is not None:
            fresh = torch.cat([fresh, pool.index_select(0, self._page_table)])
        return fresh.index_select(0, self._key_index)


def flash_attention_3(plan: RaggedPlan, query_bounds: Tensor, key_bounds: Tensor) -> RaggedAttend:
    """FlashAttention-3 as sglang-kernel ships it; its log-sum-exp is `[heads, tokens]`."""
    from sgl_kernel.flash_attn import flash_attn_varlen_func

    longest_queries, longest_keys = plan.longest_queries, plan.longest_keys

    def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        out, lse, *_ = flash_attn_varlen_func(
            *(q, k, v),
            cu_seqlens_q=query_bounds,
            cu_seqlens_k=key_bounds,
            max_seqlen_q=longest_queries,
            max_seqlen_k=longest_keys,
            softmax_scale=scale,
            causal=False,
            return_softmax_lse=True,
        )
        return out, lse.T

    return attend


def flash_infer(plan: RaggedPlan, query_bounds: Tensor, _key_bounds: Tensor) -> RaggedAttend:
    """FlashInfer, which plans on the host: once for every scale and shape of heads."""
    device = query_bounds.device
    bounds = [torch.from_numpy(each) for each in (plan.query_bounds, plan.key_bounds)]
    planned: dict[object, Any] = {}

    def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        (_, heads, dim), (_, key_heads, value_dim) = q.shape, v.shape
        sizes = (heads, key_heads, dim, value_dim)
        key = scale, sizes
        if key not in planned:
            planned[key] = next(_flash_infer_ring(device, *key))
            planned[key].plan(*bounds, *sizes, causal=False, sm_scale=scale, q_data_type=q.dtype)
        out, lse = planned[key].run(q, k, v, return_lse=True, lse_base="ln")
        return out, lse

    return attend


@cache
def _flash_infer_ring(
    device: torch.device, _scale: float, _sizes: tuple[int, ...]
) -> Iterator[Any]:
    """FlashInfer's wrappers in turn, for one of the plans that every forward makes.

    A wrapper copies its plan to the device from a host buffer, once the forwards before it are
    done. Until then it must not plan again, which would overwrite the buffer.
    """
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    workspace = _flash_infer_workspace(device)
    return cycle([BatchPrefillWithRaggedKVCacheWrapper(workspace) for _ in range(_WRAPPERS)])


@cache
def _flash_infer_workspace(device: torch.device) -> Tensor:
    """One for all wrappers, as forwards on a stream do not overlap."""
    return torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


LIBRARIES: dict[AttentionWay, Callable[[RaggedPlan, Tensor, Tensor], RaggedAttend]] = {
    AttentionWay.MERGE_FA3: flash_attention_3,
    AttentionWay.MERGE_FLASHINFER: flash_infer,
}
"""Each function takes a plan and its bounds on the device, and returns what the layers call."""


def library_obstacle(dtype: torch.dtype, device: torch.device) -> str:
    """Return why no library can compute attention of that dtype there; empty if one may.

    `probe.wrong_library` finds out whether one is installed and correct.
    """
    if device.type != "cuda":
        return f"the model is on {device.type}, not on a CUDA device"
    major, minor = torch.cuda.get_device_capability(device)
    if major != HOPPER:
        return f"the device has compute capability {major}.{minor}, not 9.0"
    return "" if dtype in _DTYPES else f"the model is in {dtype}, not in half precision"
