"""The recurrent layers of one forward: states go from held prefixes to fresh ones, and to rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from prefill_kernels.causal_conv import Taps, causal_conv
from prefill_kernels.causal_conv.reference import causal_conv_reference
from torch import Tensor

from sglang_prefill_ext.layout.recurrence_parts import Pass
from sglang_prefill_ext.layout.recurrence_plan import RecurrencePlan
from sglang_prefill_ext.recurrent.rule import DevicePart, RuleInputs, carry

HeldStates: TypeAlias = dict[int, tuple[Tensor, Tensor | None]]
"""By layer, what it carries behind the held prefix: the last inputs of its convolution, ``[W - 1,
C]``, and its state, if it has one, float32 ``[HV, Dv, D]``."""


class RuleWay(NamedTuple):
    """A way to compute the rule of a layer.

    Attributes:
        prepare: makes inputs of the outputs of the convolution, with heads, and of the gates.
        carry: ``(inputs, states, part, out)``, see `carry`; `out` is written.
    """

    prepare: Callable[..., RuleInputs]
    carry: Callable[[RuleInputs, Tensor, DevicePart, Tensor], None]


def by_torch(prepare: Callable[..., RuleInputs]) -> RuleWay:
    """The way for any device and dtype."""

    def carried(inputs: RuleInputs, states: Tensor, part: DevicePart, out: Tensor) -> None:
        for _, bounds, slots, keep in part.stages():
            carry(inputs, states, slots, bounds, out, keep=keep)

    return RuleWay(prepare, carried)


@dataclass(frozen=True, slots=True, eq=False)
class LayerRule:
    """The rule of one layer.

    Attributes:
        heads: of each output of the convolution: their number and their size.
        state_shape: HV, Dv, D.
        torch, kernels: ways to compute it. Kernels are SGLang's: for CUDA, and not for float32.
    """

    heads: Sequence[tuple[int, int]]
    state_shape: tuple[int, int, int]
    torch: RuleWay
    kernels: RuleWay

    @property
    def sizes(self) -> list[int]:
        """Channels of each output of the convolution."""
        return [heads * size for heads, size in self.heads]

    def inputs(
        self, way: RuleWay, outputs: Sequence[Tensor], gates: Sequence[Tensor]
    ) -> RuleInputs:
        """Make the inputs of the rule of the outputs of the convolution, ``[T, size]`` each."""
        split = (each.view(-1, *shape) for each, shape in zip(outputs, self.heads, strict=True))
        return way.prepare(*split, *gates)


@dataclass(frozen=True, slots=True, eq=False)
class RecurrentInputs:
    """Inputs of one layer, and its weights.

    Attributes:
        mixed: ``[T, C]``, before the convolution.
        gates: ``[T, HV]`` or ``[T, HV, D]`` each, what the rule reads beside.
        weight: ``[C, W]`` and bias ``[C]``, of the convolution.
        rule: None if the layer ends with its convolution, which then has no activation.
    """

    mixed: Tensor
    weight: Tensor
    bias: Tensor | None
    rule: LayerRule | None = None
    gates: Sequence[Tensor] = ()

    @property
    def output_shape(self) -> tuple[int, ...]:
        of_token = self.mixed.shape[1:] if self.rule is None else self.rule.state_shape[:2]
        return len(self.mixed), *of_token


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
            arrays += part.host_arrays()
        return arrays

    def bind(self, arrays: Sequence[Tensor]) -> None:
        """Take the arrays of `host_arrays`, uploaded."""
        left = iter(arrays)
        self._taps = Taps(next(left), next(left))
        self._places = None if self._order is None else next(left)
        self._tail = None if self._plan.stored is None else next(left)
        self._passes = [
            (each, [DevicePart.bound(part, left) for part in each.parts])
            for each in self._plan.passes
        ]

    def __call__(self, layer: int, inputs: RecurrentInputs) -> Tensor:
        """Return the output before the norm: ``[T, HV, Dv]``, or ``[T, C]`` without a rule."""
        tail, held = self._before(layer, inputs)
        if inputs.rule is None:
            self._keep(layer, inputs, tail, None)
            return self._convolved(inputs, tail, [inputs.mixed.shape[1]])[0]
        can_run = inputs.mixed.is_cuda and inputs.mixed.dtype != torch.float32
        way = inputs.rule.kernels if self._kernels and can_run else inputs.rule.torch
        tokens = self._rule_inputs(inputs, inputs.rule, tail, way)
        out = torch.empty_like(tokens.v)
        for each, parts in self._passes:
            states = self._initial(each, inputs.rule, held)
            for part in parts:
                own = part.part.tokens
                way.carry(tokens.part(own), states, part, out[own])
            if self._plan.stored in each.slots:
                self._keep(layer, inputs, tail, states[each.slots[self._plan.stored]].clone())
        if self._places is not None:
            out = out.index_select(0, self._places)
        return out.to(inputs.mixed.dtype)

    def _before(self, layer: int, inputs: RecurrentInputs) -> tuple[Tensor, Tensor | None]:
        """What the layer carries behind the held prefix; zeros and None if nothing is held."""
        if self._held is not None:
            return self._states[layer]
        channels, width = inputs.weight.shape
        return inputs.mixed.new_zeros(width - 1, channels), None

    def _initial(self, of: Pass, rule: LayerRule, held: Tensor | None) -> Tensor:
        states = self._taps.order.new_zeros(of.num_states, *rule.state_shape, dtype=torch.float32)
        if held is not None and self._held in of.slots:
            states[of.slots[self._held]] = held
        return states

    def _keep(
        self, layer: int, inputs: RecurrentInputs, tail: Tensor, state: Tensor | None
    ) -> None:
        """Hold what the layer carries behind the prefix that the plan stores, if it stores one."""
        if self._tail is None:
            return
        numbered = torch.cat([inputs.mixed, tail, torch.zeros_like(tail[:1])])
        self._states[layer] = numbered.index_select(0, self._tail), state

    def _convolved(
        self, inputs: RecurrentInputs, tail: Tensor, sizes: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """The outputs of the convolution, in the order of the plan."""
        convolve = causal_conv if self._kernels else causal_conv_reference
        weight = inputs.weight if self._kernels else inputs.weight.float()
        taken = (inputs.mixed, tail, self._taps, weight, inputs.bias)
        return convolve(*taken, sizes=sizes, activates=inputs.rule is not None)

    def _rule_inputs(
        self, inputs: RecurrentInputs, rule: LayerRule, tail: Tensor, way: RuleWay
    ) -> RuleInputs:
        """The inputs of the rule, in the order of the plan."""
        outputs = self._convolved(inputs, tail, rule.sizes)
        gates = inputs.gates
        if self._order is not None:
            gates = [each.index_select(0, self._taps.order) for each in gates]
        return rule.inputs(way, outputs, gates)
