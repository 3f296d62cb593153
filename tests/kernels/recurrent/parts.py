"""Parts of a recurrent layer on a device."""

from __future__ import annotations

import numpy as np
import torch

from sglang_prefill_ext.layout.recurrence_parts import Part
from sglang_prefill_ext.recurrent.layers import DevicePart


def part_of(
    lens: list[int], slots: list[int], device: torch.device, *, keep: bool, grid: int = 0
) -> DevicePart:
    """Sequences that begin with token 0; see `Part` and `Recurrence`."""
    part = Part(slice(0, sum(lens)), np.array(lens), np.array(slots, dtype=np.int32), keep, grid)
    arrays = [torch.from_numpy(each).to(device) for each in part.host_arrays()]
    return DevicePart.bound(part, iter(arrays))
