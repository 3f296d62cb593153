"""Parts of a recurrent layer on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sglang_prefill_ext.layout.recurrence_parts import Part, Room, Sequences
from sglang_prefill_ext.recurrent.layers import RuleWay
from sglang_prefill_ext.recurrent.rule import DevicePart, RuleInputs


def part_of(
    lens: list[int], slots: list[int], device: torch.device, *, keep: bool, grid: int = 0
) -> DevicePart:
    """Sequences that begin with token 0; see `Part` and `Recurrence`."""
    sequences = _sequences(lens, slots)
    prefixes = len(lens) if keep else 0
    part = Part(slice(0, sum(lens)), sequences, prefixes, sequences.num_chunks, grid)
    return _on(device, part)


def joined_part(
    prefixes: list[int],
    slots_of_prefixes: list[int],
    rows: list[int],
    slots_of_rows: list[int],
    device: torch.device,
    room: Room | None,
) -> DevicePart:
    """Prefixes, and behind them rows; see `Part.joined`."""
    first, others = _sequences(prefixes, slots_of_prefixes), _sequences(rows, slots_of_rows)
    return _on(device, Part.joined(0, first, others, room))


def assert_called_as_by_sglang(
    carry: Callable[..., None],
    kernel: Any,
    inputs: RuleInputs,
    of_layer: Sequence[Tensor],
    states: Tensor,
    part: DevicePart,
) -> None:
    """`carry` makes the same outputs and states, bit by bit, as SGLang's own call of a kernel.

    Args:
        of_layer: queries, keys and values.
    """
    own, of_sglang, found = states.clone(), states.clone(), torch.full_like(of_layer[2], torch.nan)
    carry(inputs, own, part, found)
    assert inputs.beta is not None
    made = kernel.extend(
        *(each[None].clone() for each in (*of_layer, inputs.g, inputs.beta)),
        ssm_states=of_sglang,
        cache_indices=part.slots,
        query_start_loc=part.bounds,
    )
    wanted = made[0] if isinstance(made, tuple) else made
    assert torch.equal(found, wanted[0])
    assert torch.equal(own, of_sglang)


def assert_agrees_with_torch(
    way: RuleWay,
    wanted_way: RuleWay,
    layer_inputs: Sequence[Tensor],
    states: Tensor,
    part: DevicePart,
) -> None:
    """Kernels make the inputs, outputs and states that torch makes, apart from rounding.

    Args:
        layer_inputs: queries, keys, values and both gates; kernels divide queries later.
    """
    of_kernels, of_torch = way.prepare(*layer_inputs), wanted_way.prepare(*layer_inputs)
    compared = of_torch._replace(q=of_torch.q * of_torch.q.shape[-1] ** 0.5)
    for one, other in zip(of_kernels[:5], compared[:5], strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one.float(), other.float(), rtol=1e-3, atol=1e-3)
    kept, wanted_kept = states.clone(), states.clone()
    found, wanted = (torch.full_like(layer_inputs[2], torch.nan) for _ in range(2))
    way.carry(of_kernels, kept, part, found)
    wanted_way.carry(of_torch, wanted_kept, part, wanted)
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-2)
    torch.testing.assert_close(kept, wanted_kept, rtol=0, atol=2e-2)
    keep = part.part.num_prefixes > 0
    assert torch.equal(kept, states) != keep


def assert_joined_as_apart(
    way: RuleWay, inputs: RuleInputs, prefixes: list[int], rows: list[int], slots: list[int]
) -> None:
    """Prefixes and rows in one part are carried as in two, whatever that part has room for.

    Args:
        slots: of the rows; those of the prefixes are 1, 2, ...
    """
    device, (tokens, heads, value_dim) = inputs.v.device, inputs.v.shape
    first, of_prefixes = sum(prefixes), [*range(1, len(prefixes) + 1)]
    states = torch.zeros(3, heads, value_dim, inputs.q.shape[-1], device=device)
    wanted = torch.full_like(inputs.v, torch.nan)
    if prefixes:
        part = part_of(prefixes, of_prefixes, device, keep=True)
        way.carry(inputs.part(slice(first)), states, part, wanted[:first])
    part = part_of(rows, slots, device, keep=False)
    way.carry(inputs.part(slice(first, None)), states, part, wanted[first:])
    for room in (None, Room.within(tokens, 3, 4)):
        found, found_states = torch.full_like(wanted, torch.nan), torch.zeros_like(states)
        part = joined_part(prefixes, of_prefixes, rows, slots, device, room)
        way.carry(inputs, found_states, part, found)
        assert torch.equal(found, wanted)
        assert torch.equal(found_states, states)
        assert found.isfinite().all()


def _sequences(lens: list[int], slots: list[int]) -> Sequences:
    return Sequences(np.array(lens, dtype=np.int64), np.array(slots, dtype=np.int32))


def _on(device: torch.device, part: Part) -> DevicePart:
    arrays = [torch.from_numpy(each).to(device) for each in part.host_arrays()]
    return DevicePart.bound(part, iter(arrays))
