"""The ranks that compute a forward together."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch.distributed import ReduceOp

from sglang_prefill_ext.forward.device import require_usable

_Number = TypeVar("_Number", int, float)


class Ranks:
    """The tensor-parallel ranks of a scheduler; every rank makes the same calls in the same order.

    Attributes:
        count: how many there are.
    """

    def __init__(self, scheduler: Any) -> None:
        self._group = scheduler.tp_cpu_group
        self._device = torch.device(scheduler.tp_worker.model_runner.device)
        self.count: int = torch.distributed.get_world_size(self._group)

    def largest(self, numbers: list[_Number]) -> list[_Number]:
        """Return the largest of all ranks' numbers, place by place."""
        tensor = torch.tensor(numbers)
        torch.distributed.all_reduce(tensor, ReduceOp.MAX, group=self._group)
        return tensor.tolist()

    def require_usable(self, error: Exception) -> None:
        """See `forward.device.require_usable`."""
        require_usable(self._device, self.count, error)
