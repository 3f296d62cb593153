"""Copies between host and device: a forward's input arrays, and its values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.wire.arrays import Float32Array


class ForwardCompletion:
    """The values of a forward on their way to the host.

    On CUDA the copy is asynchronous, into pinned memory, and an event marks its end; the
    device tensors stay referenced until then.
    """

    def __init__(self, values: Tensor) -> None:
        self._device_values = values
        self._event: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._values = values

    def done(self) -> bool:
        """Whether the values are on the host."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> Float32Array:
        """Block until the values are on the host; return them, float32 ``[n]``."""
        if self._event is not None:
            self._event.synchronize()
        return self._values.numpy().astype(np.float32, copy=False)


_ALIGNMENT = 16  # bytes; vector loads of the kernels need it
_TORCH_DTYPES = {
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
}


def upload(arrays: Sequence[NDArray[np.generic]], device: torch.device) -> list[Tensor]:
    """Copy arrays to the device, each as a tensor of its own dtype and shape.

    On CUDA all arrays are copied in one buffer, asynchronously from pinned memory: with a transfer
    per array, a forward of a few tokens would spend more time on transfers than on matrix products.
    On a CPU each array is copied by itself, which takes a fifth of the time of filling a buffer.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array.copy()) for array in arrays]
    buffer = in_one_buffer(arrays, pinned=True).to(device, non_blocking=True)
    return tensors_in(buffer, arrays)


Groups: TypeAlias = Sequence[Sequence[NDArray[np.generic]]]
"""Arrays by what reads them."""


def flat(groups: Groups) -> list[NDArray[np.generic]]:
    """All arrays, group after group."""
    return [*chain(*groups)]


def in_groups(tensors: Sequence[Tensor], groups: Groups) -> list[list[Tensor]]:
    """The tensors of `flat` arrays, by group again."""
    left = iter(tensors)
    return [[*islice(left, len(group))] for group in groups]


def in_one_buffer(arrays: Sequence[NDArray[np.generic]], *, pinned: bool) -> Tensor:
    """The bytes of all arrays in the host's memory, each aligned."""
    starts, size = _starts(arrays)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    flat = host.numpy()
    for start, array in zip(starts, arrays, strict=True):
        flat[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
    return host


def tensors_in(buffer: Tensor, arrays: Sequence[NDArray[np.generic]]) -> list[Tensor]:
    """Views of a buffer as the tensors that `in_one_buffer` has put there, one per array."""
    starts, _ = _starts(arrays)
    return [
        buffer[start : start + array.nbytes].view(_TORCH_DTYPES[array.dtype.name]).view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


def _starts(arrays: Sequence[NDArray[np.generic]]) -> tuple[list[int], int]:
    """Where each array begins in the buffer, and the buffer's size, in bytes."""
    starts, size = [], 0
    for array in arrays:
        starts.append(size)
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return starts, size
