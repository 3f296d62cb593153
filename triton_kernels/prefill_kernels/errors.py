"""The error of all kernels, and the checks of arguments that raise it.

The checks read shapes, strides, dtypes and devices, which the host knows. The *contents* of a
tensor are never checked here: that would wait for the device. Indices are checked where they are
made.
"""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor, device, dtype


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


def check_device(name: str, tensor: Tensor, expected: device) -> None:
    require(tensor.device == expected, name, f"on {tensor.device}", f"move it to {expected}")


def check_dtype(name: str, tensor: Tensor, allowed: Sequence[dtype]) -> None:
    if tensor.dtype not in allowed:
        raise KernelArgumentError(name, tensor.dtype, f"use {' or '.join(map(str, allowed))}")


def check_shape(name: str, tensor: Tensor, expected: Sequence[int | None]) -> None:
    """Require a shape; `None` in `expected` allows any size."""
    shape = tuple(tensor.shape)
    fits = len(shape) == len(expected) and all(
        want is None or have == want for have, want in zip(shape, expected, strict=True)
    )
    if not fits:
        sizes = ", ".join("*" if want is None else str(want) for want in expected)
        raise KernelArgumentError(name, f"of shape {list(shape)}", f"it must be [{sizes}]")


def check_unit_stride(name: str, tensor: Tensor) -> None:
    """Require stride 1 in the last dimension; other strides may be anything."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise KernelArgumentError(
            name,
            f"strided by {tensor.stride(-1)} in its last dimension",
            "that stride must be 1; call .contiguous()",
        )
