"""All arrays of a forward on the device, in one transfer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # bytes; what vector loads of the kernels want


def upload(arrays: Sequence[NDArray[np.generic]], device: torch.device) -> list[Tensor]:
    """Copy arrays to the device, each as a tensor of its own dtype and shape.

    One buffer and one copy, asynchronous from pinned memory on CUDA: a forward of a few tokens
    would otherwise spend more time on transfers than on products.
    """
    starts, size = [], 0
    for array in arrays:
        starts.append(size)
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    flat = host.numpy()
    for start, array in zip(starts, arrays, strict=True):
        flat[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
    buffer = host.to(device, non_blocking=True)
    return [
        buffer[start : start + array.nbytes].view(_TORCH_DTYPES[array.dtype.name]).view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


_TORCH_DTYPES = {
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
}
