"""The attention of one forward as its model's layers call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.attention.prefix import Held
from sglang_prefill_ext.oneshot.held import HeldPrefix
from sglang_prefill_ext.oneshot.planner import ForwardPlan
from sglang_prefill_ext.oneshot.prefix_cache import PrefixSource, PrefixTransaction


class Attention(Protocol):
    """Attention over one layout; `DenseAttention` or `KernelAttention`."""

    def host_arrays(self) -> Sequence[NDArray[np.int32]]: ...

    def bind(self, arrays: Sequence[Tensor]) -> None: ...

    def forward(self, inputs: LayerInputs, held: Held) -> Tensor: ...

    def read(self, inputs: LayerInputs, held: Held) -> Tensor: ...


class LayerAttention:
    """`Attend` of one forward: brings what groups hold, and takes what they leave.

    Args:
        held: per group the source of its held prefix.
        stores: per group where the first tokens of its fresh prefix are stored.
        shortened: the layer, if any, that is asked for the ends of rows only.
    """

    def __init__(
        self,
        plan: ForwardPlan,
        attention: Attention,
        held: Sequence[PrefixSource | None],
        stores: Sequence[PrefixTransaction | None],
        shortened: int | None,
    ) -> None:
        self.kept = [HeldPrefix() if hold else None for hold in plan.hold]
        """Per group what is left for the request's next forward."""
        self._attention = attention
        self._held = held
        self._stores = stores
        self._shortened = shortened
        self._layout = plan.layout
        self._leaves_any = any(plan.hold) or any(store is not None for store in stores)

    def __call__(self, layer: int, inputs: LayerInputs) -> Tensor:
        before = [None if source is None else source.load(layer) for source in self._held]
        if self._leaves_any:
            self._leave(layer, inputs, before)
        attend = self._attention.read if layer == self._shortened else self._attention.forward
        return attend(inputs, before)

    def _leave(self, layer: int, inputs: LayerInputs, before: Held) -> None:
        spans = zip(self._layout.group_starts.tolist(), self._layout.groups, strict=True)
        for (start, span), old, kept, store in zip(
            spans, before, self.kept, self._stores, strict=True
        ):
            if kept is not None:
                fresh = slice(start, start + span.fresh)
                kept.keep(layer, old, inputs.k[fresh], inputs.v[fresh])
            if store is not None:
                some = slice(start, start + store.stored)
                store.store(layer, inputs.k[some], inputs.v[some])
