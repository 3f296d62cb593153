"""The attention of one forward as its model's layers call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.attention.prefix import HeldKV, write_page_table
from sglang_prefill_ext.oneshot.held import HeldPrefix
from sglang_prefill_ext.oneshot.kv_pool import KVPool
from sglang_prefill_ext.oneshot.planner import ForwardPlan

HeldSource: TypeAlias = Tensor | HeldPrefix | None
"""What a group holds: slots of the pool, int64 ``[held]``, or K/V beside it; None for nothing."""


class Attention(Protocol):
    """Attention over one layout; `DenseAttention` or `KernelAttention`."""

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        """The arrays to upload."""
        ...

    def bind(self, arrays: Sequence[Tensor], page_table: Tensor | None = None) -> None:
        """Take what all layers read.

        Args:
            arrays: those of `host_arrays`, uploaded.
            page_table: int32, the slots of all held prefixes, see `write_page_table`; longer ones
                are fine. None: no layer is called with K/V that are held.
        """
        ...

    def forward(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        """Attention of all tokens.

        Args:
            cached: K/V of the slots that the page table names.
        """
        ...

    def read(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        """Attention of the read positions alone; likewise."""
        ...


class LayerAttention:
    """`Attend` of one forward: brings what groups hold, and takes what they leave.

    Args:
        held: per group what it holds.
        stores: per group the slots, int64 ``[n]``, of the first tokens of its fresh prefix, where
            these are stored.
        shortened: the layer, if any, that is asked for the ends of rows only.
        pool: of all slots; None where nobody has any.
    """

    def __init__(
        self,
        plan: ForwardPlan,
        attention: Attention,
        held: Sequence[HeldSource],
        stores: Sequence[Tensor | None],
        shortened: int | None,
        pool: KVPool | None,
    ) -> None:
        self.kept = [HeldPrefix() if hold else None for hold in plan.hold]
        """Per group what is left for the request's next forward."""
        self._attention = attention
        self._held = held
        self._stores = stores
        self._shortened = shortened
        self._pool = pool
        self._layout = plan.layout
        self._leaves_any = any(plan.hold) or any(store is not None for store in stores)
        self._is_copied = any(isinstance(source, HeldPrefix) for source in held)
        self._holds_any = any(source is not None for source in held)

    def page_table(self, device: torch.device) -> Tensor | None:
        """See `Attention.bind`."""
        num_held = sum(group.held for group in self._layout.groups)
        if not num_held:
            return None
        if self._is_copied:
            return torch.arange(num_held, dtype=torch.int32, device=device)
        table = torch.empty(num_held, dtype=torch.int32, device=device)
        write_page_table([each for each in self._held if isinstance(each, Tensor)], table)
        return table

    def __call__(self, layer: int, inputs: LayerInputs) -> Tensor:
        cached = None
        if self._holds_any:
            cached = self._copied(layer) if self._is_copied else self._buffers(layer)
        if self._leaves_any:
            self._leave(layer, inputs)
        attend = self._attention.read if layer == self._shortened else self._attention.forward
        return attend(inputs, cached)

    def _buffers(self, layer: int) -> HeldKV:
        assert self._pool is not None, "slots belong to a pool"
        return self._pool.buffers(layer)

    def _copied(self, layer: int) -> HeldKV:
        pairs = [self._load(source, layer) for source in self._held if source is not None]
        keys, values = zip(*pairs, strict=True)
        return torch.cat(keys), torch.cat(values)

    def _load(self, source: Tensor | HeldPrefix, layer: int) -> HeldKV:
        if isinstance(source, HeldPrefix):
            return source.load(layer)
        keys, values = self._buffers(layer)
        return keys[source], values[source]

    def _leave(self, layer: int, inputs: LayerInputs) -> None:
        spans = zip(self._layout.group_starts.tolist(), self._layout.groups, strict=True)
        for (start, span), source, kept, store in zip(
            spans, self._held, self.kept, self._stores, strict=True
        ):
            if kept is not None:
                old = None if source is None else self._load(source, layer)
                fresh = slice(start, start + span.fresh)
                kept.keep(layer, old, inputs.k[fresh], inputs.v[fresh])
            if store is not None:
                assert self._pool is not None, "slots belong to a pool"
                some = slice(start, start + len(store))
                self._pool.store(layer, store, inputs.k[some], inputs.v[some])
