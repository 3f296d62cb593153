"""Attention over the prefixes of a forward by attention libraries, in the terms of the merge.

A layer takes one call for all groups, so that what a library costs the host does not grow with
the requests of a forward.
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

RaggedAttend: TypeAlias = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""``(q [T,H,D], k [K,KH,D], v [K,KH,Dv], scale) -> out [T,H,Dv], lse [T,H]``, natural log, of a
`RaggedPlan`; whatever of tokens that see no key."""


class LibraryPrefixes:
    """Attention of all tokens of a forward over their prefixes.

    Libraries want keys one behind the other, so those of prefixes are copied in every layer: held
    ones out of their slots, and fresh ones out of the forward's.
    """

    def __init__(self, layout: ForwardLayout, way: AttentionWay) -> None:
        self._plan = plan_prefixes(layout)
        self._library = LIBRARIES[way]

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        """The arrays to upload."""
        plan = self._plan
        return [plan.query_bounds, plan.key_bounds, plan.key_index, plan.without_keys()]

    def bind(self, arrays: Sequence[Tensor], page_table: Tensor | None) -> None:
        """See `layers.Attention.bind`."""
        query_bounds, key_bounds, self._key_index, without_keys = arrays
        self._page_table = page_table
        self._without_keys = without_keys.bool()[:, None]
        self._attend = self._library(self._plan, query_bounds, key_bounds)

    def forward(self, inputs: LayerInputs, cached: HeldKV | None) -> tuple[Tensor, Tensor] | None:
        """`out` `[T, H, Dv]` and `lse` `[T, H]`, -inf without a prefix; None if no token has one.

        Args:
            cached: keys and values of the slots that the page table names.
        """
        if not len(self._key_index):
            return None
        pools = (None, None) if cached is None else cached
        fresh = (inputs.k, inputs.v)
        k, v = (self._keys(new, pool) for new, pool in zip(fresh, pools, strict=True))
        out, lse = self._attend(inputs.q, k, v, inputs.scale)
        return out, lse.masked_fill(self._without_keys, -torch.inf)

    def _keys(self, fresh: Tensor, pool: Tensor | None) -> Tensor:
        """Keys, or values, in the order of the plan."""
        if pool is not None and self._page_table is not None:
            fresh = torch.cat([fresh, pool.index_select(0, self._page_table)])
        return fresh.index_select(0, self._key_index)


def tokens_first(lse: Tensor) -> Tensor:
    """A view `[tokens, heads]` of `[heads, tokens]`."""
    return lse.transpose(0, 1)


def flash_attention_3(plan: RaggedPlan, query_bounds: Tensor, key_bounds: Tensor) -> RaggedAttend:
    """FlashAttention-3 as sglang-kernel ships it, whose log-sum-exp is `[heads, tokens]`."""
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
        return out, tokens_first(lse)

    return attend


def flash_infer(plan: RaggedPlan, query_bounds: Tensor, _key_bounds: Tensor) -> RaggedAttend:
    """FlashInfer, which plans on the host: at the first layer, and for each other scale."""
    ring = _flash_infer_ring(query_bounds.device)
    bounds = [torch.from_numpy(each) for each in (plan.query_bounds, plan.key_bounds)]
    planned: dict[float, Any] = {}

    def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        if scale not in planned:
            planned[scale] = next(ring)
            (_, heads, dim), (_, key_heads, value_dim) = q.shape, v.shape
            sizes = (heads, key_heads, dim, value_dim)
            planned[scale].plan(*bounds, *sizes, causal=False, sm_scale=scale, q_data_type=q.dtype)
        out, lse = planned[scale].run(q, k, v, return_lse=True, lse_base="ln")
        return out, lse

    return attend


@cache
def _flash_infer_ring(device: torch.device) -> Iterator[Any]:
    """Wrappers in turn, more than forwards are in flight.

    A wrapper copies its plan to the device when the forwards before are done, out of a buffer of
    the host that must not be planned into until then. Numbers between layers need one buffer for
    all, as forwards of a stream do not overlap.
    """
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    return cycle([BatchPrefillWithRaggedKVCacheWrapper(workspace) for _ in range(_WRAPPERS)])


LIBRARIES: dict[AttentionWay, Callable[[RaggedPlan, Tensor, Tensor], RaggedAttend]] = {
    AttentionWay.MERGE_FA3: flash_attention_3,
    AttentionWay.MERGE_FLASHINFER: flash_infer,
}
"""Each makes, of a plan and of its bounds on the device, what its layers call."""


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
