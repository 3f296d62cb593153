"""Sequences that a recurrent layer computes at once, with their arrays on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from sglang_prefill_ext.layout.recurrence_parts import Part


@dataclass(frozen=True, slots=True, eq=False)
class DevicePart:
    """A `Part` with its arrays on the device; `lists` are the last ones of `Part.host_arrays`."""

    part: Part
    bounds: Tensor
    slots: Tensor
    lists: Sequence[Tensor]

    @staticmethod
    def bound(part: Part, arrays: Iterator[Tensor]) -> DevicePart:
        """Take the arrays of `Part.host_arrays`, uploaded."""
        bounds, slots, *lists = islice(arrays, 5 if part.grid else 4)
        return DevicePart(part, bounds, slots, lists)

    def stages(self) -> Iterator[tuple[slice, Tensor, Tensor, bool]]:
        """See `Part.stages`; of each where its bounds are in `bounds`, these, its slots, and
        whether the states behind its sequences are kept."""
        for numbers, keep in self.part.stages:
            ends = slice(numbers.start, numbers.stop + 1)
            yield ends, self.bounds[ends], self.slots[numbers], keep
