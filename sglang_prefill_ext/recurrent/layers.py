"""The recurrent layers of one forward: states go from held prefixes to fresh ones, and to rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from prefill_kernels.causal_conv import Taps, causal_conv
from prefill_kernels.causal_conv.reference import causal_conv_reference
from torch import Tensor

from sglang_prefill_ext.layout.recurrence_plan import Part, Pass, RecurrencePlan
from sglang_prefill_ext.recurrent.delta_rule import RuleInputs, delta_rule, prepared

HeldStates: TypeAlias = dict[int, tuple[Tensor, Tensor]]
"""By layer, what it carries behind the held prefix: the last inputs of its convolution, ``[W - 1,
C]``, and its state, float32 ``[HV, Dv, D]``."""


@dataclass(frozen=True, slots=True, eq=False)
class DevicePart:
    """A `Part` with its arrays on the device, for the names see there.

    Attributes:
        bounds, slots, chunks, chunk_bounds: int32.
    """

    part: Part
    bounds: Tensor
    slots: Tensor
    chunks: Tensor
    chunk_bounds: Tensor


class RuleWay(NamedTuple):
    """A way to compute the rule.

    Attributes:
        prepare: as `prepared`.
        rule: ``(inputs, states, part, out)``, see `delta_rule`; `out` is written.
    """

    prepare: Callable[..., RuleInputs]
    rule: Callable[[RuleInputs, Tensor, DevicePart, Tensor], None]


def _rule_by_torch(inputs: RuleInputs, states: Tensor, part: DevicePart, out: Tensor) -> None:
    out.copy_(delta_rule(inputs, states, part.slots, part.bounds, keep=part.part.keep))


BY_TORCH = RuleWay(prepared, _rule_by_torch)


@dataclass(frozen=True, slots=True, eq=False)
class DeltaInputs:
    """Inputs of one layer, and its weights.

    Attributes:
        mixed: ``[T, C]``, queries, keys and values before the convolution.
        a, b: ``[T, HV]``, of which the gates are made.
        conv_weight: ``[C, W]``; conv_bias: ``[C]``.
        a_log, dt_bias: ``[HV]``, also for the gates.
        key_shape, value_shape: heads and their size.
        kernels: compute the rule; None if they cannot compute this layer.
    """

    mixed: Tensor
    a: Tensor
    b: Tensor
    conv_weight: Tensor
    conv_bias: Tensor | None
    a_log: Tensor
    dt_bias: Tensor
    key_shape: tuple[int, int]
    value_shape: tuple[int, int]
    kernels: RuleWay | None


class LayerRecurrence:
    """Computes each recurrent layer of one forward.

    Args:
        states: those of the held prefix; replaced by those of the prefix that the plan stores.
        kernels: compute by kernels, not by torch.
    """

    def __init__(self, plan: RecurrencePlan, states: HeldStates, *, kernels: bool) -> None:
        self._plan = plan
        self._states = states
        self._kernels = kernels
        self._held = next((at for at, each in enumerate(plan.layout.groups) if each.held), None)
        self._order = plan.order()

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        """The arrays to upload."""
        plan, order = self._plan, self._order
        arrays = [np.arange(plan.layout.num_tokens, dtype=np.int32), plan.previous()]
        if order is not None:
            arrays = [order, arrays[1][order], np.argsort(order).astype(np.int32)]
        if plan.stored is not None:
            arrays.append(plan.tail(plan.stored))
        for part in (part for each in plan.passes for part in each.parts):
            arrays += [part.bounds, part.slots, part.chunks(), part.chunk_bounds]
        return arrays

    def bind(self, arrays: Sequence[Tensor]) -> None:
        """Take the arrays of `host_arrays`, uploaded."""
        left = iter(arrays)
        self._taps = Taps(next(left), next(left))
        self._places = None if self._order is None else next(left)
        self._tail = None if self._plan.stored is None else next(left)
        self._passes = [
            (each, [DevicePart(part, *islice(left, 4)) for part in each.parts])
            for each in self._plan.passes
        ]

    def __call__(self, layer: int, inputs: DeltaInputs) -> Tensor:
        """Return ``[T, HV, Dv]``, the layer's output before its norm."""
        tail, held = self._before(layer, inputs)
        way = (inputs.kernels if self._kernels else None) or BY_TORCH
        tokens = self._rule_inputs(inputs, tail, way)
        out = torch.empty_like(tokens.v)
        for each, parts in self._passes:
            states = self._initial(each, inputs, held)
            for part in parts:
                own = part.part.tokens
                way.rule(tokens.part(own), states, part, out[own])
            if self._tail is not None and self._plan.stored in each.slots:
                numbered = torch.cat([inputs.mixed, tail, torch.zeros_like(tail[:1])])
                last = numbered.index_select(0, self._tail)
                self._states[layer] = last, states[each.slots[self._plan.stored]].clone()
        return out if self._places is None else out.index_select(0, self._places)

    def _before(self, layer: int, inputs: DeltaInputs) -> tuple[Tensor, Tensor | None]:
        """What the layer carries behind the held prefix; zeros and None if nothing is held."""
        if self._held is not None:
            return self._states[layer]
        channels, width = inputs.conv_weight.shape
        return inputs.mixed.new_zeros(width - 1, channels), None

    def _initial(self, of: Pass, inputs: DeltaInputs, held: Tensor | None) -> Tensor:
        """The states before a pass."""
        (_, key_dim), (heads, value_dim) = inputs.key_shape, inputs.value_shape
        shape = (1 + len(of.slots), heads, value_dim, key_dim)
        states = inputs.mixed.new_zeros(shape, dtype=torch.float32)
        if held is not None and self._held in of.slots:
            states[of.slots[self._held]] = held
        return states

    def _rule_inputs(self, inputs: DeltaInputs, tail: Tensor, way: RuleWay) -> RuleInputs:
        """The inputs of the rule, in the order of the plan."""
        weight, a, b = inputs.conv_weight, inputs.a, inputs.b
        heads, dim = inputs.key_shape
        if not self._kernels:
            weight = weight.float()
        convolve = causal_conv if self._kernels else causal_conv_reference
        taken = (inputs.mixed, tail, self._taps, weight, inputs.conv_bias)
        q, k, v = convolve(*taken, num_keys=heads * dim)
        if self._order is not None:
            a, b = (each.index_select(0, self._taps.order) for each in (a, b))
        q, k = (each.view(-1, heads, dim) for each in (q, k))
        v = v.view(-1, *inputs.value_shape)
        return way.prepare(inputs.a_log, inputs.dt_bias, q, k, v, a, b)
