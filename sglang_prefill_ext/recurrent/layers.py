"""The recurrent layers of one forward: states go from held prefixes to fresh ones, and to rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from prefill_kernels.causal_conv import Taps, causal_conv
from prefill_kernels.causal_conv.reference import causal_conv_reference
from torch import Tensor

from sglang_prefill_ext.layout.recurrence_plan import RecurrencePlan, Sequences
from sglang_prefill_ext.recurrent.delta_rule import RuleInputs, delta_rule

HeldStates: TypeAlias = dict[int, tuple[Tensor, Tensor]]
"""By layer, what it carries behind the held prefix: the last inputs of its convolution, ``[W - 1,
C]``, and its state, ``[HV, Dv, D]``."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """`Sequences` on the device: prefixes or rows of a forward.

    Attributes:
        tokens: where they lie in the order of the forward.
        lens: tokens of each.
        bounds: int32 ``[n + 1]``; slots: int32 ``[n]``.
    """

    tokens: slice
    lens: list[int]
    bounds: Tensor
    slots: Tensor


Rule: TypeAlias = Callable[[RuleInputs, Tensor, Stretch, bool], Tensor]
"""``(inputs, states, stretch, keep) -> [T, HV, Dv]``, see `delta_rule`."""

Gates: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""``(a, b) -> (g, beta)``, all ``[T, HV]``, see `RuleInputs`."""


@dataclass(frozen=True, slots=True, eq=False)
class DeltaInputs:
    """Inputs of one layer, and its weights.

    Attributes:
        mixed: ``[T, C]``, queries, keys and values before the convolution.
        a, b: ``[T, HV]``, of which the gates are made.
        conv_weight: ``[C, W]``; conv_bias: ``[C]``.
        key_shape, value_shape: heads and their size.
        state_dtype: of the states that the rule reads and writes.
        gates, rule: compute the gates and the rule.
    """

    mixed: Tensor
    a: Tensor
    b: Tensor
    conv_weight: Tensor
    conv_bias: Tensor | None
    key_shape: tuple[int, int]
    value_shape: tuple[int, int]
    state_dtype: torch.dtype
    gates: Gates
    rule: Rule

    @property
    def num_keys(self) -> int:
        """Channels of queries, and of keys."""
        heads, dim = self.key_shape
        return heads * dim


class LayerRecurrence:
    """Computes each recurrent layer of one forward.

    Args:
        stored: the group whose states are to be held from now on; None for none.
        states: those of the held prefix; replaced by those of the stored one.
        kernels: convolve by the Triton kernel, not by torch.
    """

    def __init__(
        self, plan: RecurrencePlan, stored: int | None, states: HeldStates, *, kernels: bool
    ) -> None:
        self._plan = plan
        self._stored = stored
        self._states = states
        self._kernels = kernels
        self._held = next((at for at, each in enumerate(plan.layout.groups) if each.held), None)
        self._order = plan.order()

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        """The arrays to upload."""
        plan, previous = self._plan, self._plan.previous()
        arrays = [previous if self._order is None else previous[self._order]]
        for sequences in (plan.prefixes, plan.rows):
            arrays += [sequences.bounds, sequences.slots]
        if self._stored is not None:
            arrays.append(plan.tail(self._stored))
        if self._order is not None:
            arrays += [self._order, np.argsort(self._order).astype(np.int32)]
        return arrays

    def bind(self, arrays: Sequence[Tensor]) -> None:
        """Take the arrays of `host_arrays`, uploaded."""
        previous, *rest = arrays
        prefix_arrays, row_arrays, rest = rest[:2], rest[2:4], rest[4:]
        self._tail = rest.pop(0) if self._stored is not None else None
        self._taps = Taps(rest[0] if rest else None, previous)
        self._places = rest[1] if rest else None
        first = int(self._plan.prefixes.lens.sum())
        prefixes = _stretch(self._plan.prefixes, 0, *prefix_arrays)
        self._stretches = [(prefixes, True), (_stretch(self._plan.rows, first, *row_arrays), False)]

    def __call__(self, layer: int, inputs: DeltaInputs) -> Tensor:
        """Return ``[T, HV, Dv]``, the layer's output before its norm."""
        tail, states = self._initial(layer, inputs)
        tokens = self._rule_inputs(inputs, tail)
        outputs = [
            inputs.rule(tokens.part(stretch.tokens), states, stretch, keep)
            for stretch, keep in self._stretches
            if stretch.lens
        ]
        if self._stored is not None and self._tail is not None:
            numbered = torch.cat([inputs.mixed, tail, torch.zeros_like(tail[:1])])
            last = numbered.index_select(0, self._tail)
            self._states[layer] = last, states[self._plan.group_slots[self._stored]].clone()
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return out if self._places is None else out.index_select(0, self._places)

    def _initial(self, layer: int, inputs: DeltaInputs) -> tuple[Tensor, Tensor]:
        """Inputs before the forward, ``[W - 1, C]``, and the states before it."""
        channels, width = inputs.conv_weight.shape
        (_, key_dim), (heads, value_dim) = inputs.key_shape, inputs.value_shape
        shape = (self._plan.num_slots, heads, value_dim, key_dim)
        states = inputs.mixed.new_zeros(shape, dtype=inputs.state_dtype)
        if self._held is None:
            return inputs.mixed.new_zeros(width - 1, channels), states
        tail, held = self._states[layer]
        states[self._plan.group_slots[self._held]] = held
        return tail, states

    def _rule_inputs(self, inputs: DeltaInputs, tail: Tensor) -> RuleInputs:
        """The inputs of the rule, in the order of the plan."""
        weight, a, b = inputs.conv_weight, inputs.a, inputs.b
        if not self._kernels:
            weight = weight.float()
        convolve = causal_conv if self._kernels else causal_conv_reference
        q, k, v = convolve(
            *(inputs.mixed, tail, self._taps, weight, inputs.conv_bias), num_keys=inputs.num_keys
        )
        if self._taps.order is not None:
            a, b = (each.index_select(0, self._taps.order) for each in (a, b))
        q, k = (each.view(-1, *inputs.key_shape) for each in (q, k))
        return RuleInputs(q, k, v.view(-1, *inputs.value_shape), *inputs.gates(a, b))


def rule_by_torch(inputs: RuleInputs, states: Tensor, stretch: Stretch, keep: bool) -> Tensor:
    """The `Rule` on any device, see `delta_rule`."""
    return delta_rule(inputs, states, stretch.slots, stretch.lens, keep=keep)


def _stretch(sequences: Sequences, first: int, bounds: Tensor, slots: Tensor) -> Stretch:
    lens = sequences.lens.tolist()
    return Stretch(slice(first, first + sum(lens)), lens, bounds, slots)
