"""Keep checked launches, so that arguments are checked once for all launches that look the same.

A forward launches a kernel with the same shapes in every layer. The checks read nothing of a tensor
but its `Look`, so arguments with the same looks as checked ones need no check.
"""

from collections.abc import Hashable
from typing import Generic, TypeAlias, TypeVar

import torch
import triton
from torch import Tensor, device, dtype

Look: TypeAlias = tuple[torch.Size, tuple[int, ...], dtype, device]

Launch = TypeVar("Launch")

MOST = 256
"""Most launches that are kept, enough for some hundred layouts."""


def look(tensor: Tensor | None) -> Look | None:
    """All properties of a tensor except its contents and their address."""
    if tensor is None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def place(tensor: Tensor) -> int | bool:
    """What `check_launchable` reads beside the `Look`.

    For a CUDA tensor it is the current CUDA device, on which a kernel would be launched; for a
    tensor on the host, whether Triton's interpreter is on.
    """
    return torch.cuda.current_device() if tensor.is_cuda else triton.knobs.runtime.interpret


class PreparedLaunches(Generic[Launch]):
    """The last launches of a kernel, each under a key of everything that its checks have read."""

    def __init__(self) -> None:
        self._launches: dict[Hashable, Launch] = {}
        self.get = self._launches.get

    def keep(self, key: Hashable, launch: Launch) -> Launch:
        """Keep a launch whose arguments have passed the checks, and return it."""
        if len(self._launches) >= MOST:
            self._launches.clear()
        self._launches[key] = launch
        return launch
