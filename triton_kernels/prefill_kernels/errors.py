"""The error of all kernels, and the checks of arguments that raise it.

The checks read shapes, strides, dtypes and devices, which the host knows. The *contents* of a
tensor are never checked here: that would wait for the device. Indices are checked where they are
made.
"""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor, device, dtype

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes of the numbers that kernels read."""


class KernelArgumentError(ValueError):
    """An argument of a kernel cannot work; the message names it, its value and the remedy.

    Attributes:
        name: the argument.
    """

    def __init__(self, name: str, value: object, remedy: str) -> None:
        super().__init__(f"{name} is {value}: {remedy}")
        self.name = name


def require(holds: bool, name: str, value: object, remedy: str) -> None:
    """Raise `KernelArgumentError(name, value, remedy)` unless `holds`."""
    if not holds:
        raise KernelArgumentError(name, value, remedy)


def check_launchable(name: str, tensor: Tensor) -> None:
    """Require a tensor of the current CUDA device or, for one on the host, Triton's interpreter.

    Triton launches on the current device, even if the tensors are on another one, whose memory the
    kernel must not access.
    """
    if tensor.is_cuda:
        current = torch.cuda.current_device()
        remedy = f"cuda:{current} is current; launch within torch.cuda.device(...) of the tensors"
        require(tensor.device.index == current, name, f"on {tensor.device}", remedy)
    else:
        remedy = "move it to a CUDA device, or set TRITON_INTERPRET=1 before triton is imported"
        require(triton.knobs.runtime.interpret, name, f"on {tensor.device}", remedy)


def check_tensor(
    name: str,
    tensor: Tensor,
    sizes: Sequence[int | None],
    dtypes: Sequence[dtype],
    place: device,
    *,
    any_stride: bool = False,
) -> None:
    """Require a device, one of several dtypes, a shape, and stride 1 in the last dimension.

    Args:
        sizes: the shape; `None` allows any size.
        any_stride: the last dimension may have another stride, too; other dimensions always may.
    """
    if tensor.device != place:
        raise KernelArgumentError(name, f"on {tensor.device}", f"move it to {place}")
    if tensor.dtype not in dtypes:
        raise KernelArgumentError(name, tensor.dtype, f"use {' or '.join(map(str, dtypes))}")
    shape = tuple(tensor.shape)
    fits = len(shape) == len(sizes) and all(
        want is None or have == want for have, want in zip(shape, sizes, strict=True)
    )
    if not fits:
        wanted = ", ".join("*" if want is None else str(want) for want in sizes)
        raise KernelArgumentError(name, f"of shape {list(shape)}", f"it must be [{wanted}]")
    if not any_stride and shape[-1] > 1 and tensor.stride(-1) != 1:
        raise KernelArgumentError(
            name,
            f"strided by {tensor.stride(-1)} in its last dimension",
            "that stride must be 1; call .contiguous()",
        )
