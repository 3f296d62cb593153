"""Launches that were checked and worked out once, for all that look the same.

A forward launches a kernel of the same shapes in every layer. What the checks read of a tensor is
its `Look`; arguments that look like some that were found right are right as well.
"""

from collections.abc import Hashable
from typing import Generic, TypeAlias, TypeVar

import torch
import triton
from torch import Tensor, device, dtype

Look: TypeAlias = tuple[torch.Size, tuple[int, ...], dtype, device]

Launch = TypeVar("Launch")

MOST = 256
"""Launches that are kept: those of some hundred layouts."""


def look(tensor: Tensor | None) -> Look | None:
    """All of a tensor but its numbers and where they lie."""
    if tensor is None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def place(tensor: Tensor) -> int | bool:
    """What `check_launchable` reads besides: the current CUDA device, which is where a kernel would
    be launched; for a tensor of the host whether there is the interpreter."""
    return torch.cuda.current_device() if tensor.is_cuda else triton.knobs.runtime.interpret


class PreparedLaunches(Generic[Launch]):
    """The last launches of a kernel, each by all that its checks have read."""

    def __init__(self) -> None:
        self._launches: dict[Hashable, Launch] = {}
        self.get = self._launches.get

    def keep(self, key: Hashable, launch: Launch) -> Launch:
        """Keep a launch whose arguments were found right, and return it."""
        if len(self._launches) >= MOST:
            self._launches.clear()
        self._launches[key] = launch
        return launch
