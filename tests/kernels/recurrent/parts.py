"""Parts of a recurrent layer on a device."""

from __future__ import annotations

import numpy as np
import torch

from sglang_prefill_ext.layout.recurrence_parts import Part, Room, Sequences
from sglang_prefill_ext.recurrent.device_part import DevicePart


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


def _sequences(lens: list[int], slots: list[int]) -> Sequences:
    return Sequences(np.array(lens, dtype=np.int64), np.array(slots, dtype=np.int32))


def _on(device: torch.device, part: Part) -> DevicePart:
    arrays = [torch.from_numpy(each).to(device) for each in part.host_arrays()]
    return DevicePart.bound(part, iter(arrays))
