"""Tensors on the device of the kernels, and whether torch waits for it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tests.kernels.conftest import COMPILED


def on(device: torch.device, tensor: Tensor) -> Tensor:
    """Move a tensor and keep its strides; `to` would make it contiguous."""
    moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return moved.copy_(tensor)


@contextmanager
def never_waiting() -> Iterator[None]:
    """Fail if torch waits for a CUDA device, because such a launch cannot overlap another."""
    if not COMPILED:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that it may overlook a wait
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
