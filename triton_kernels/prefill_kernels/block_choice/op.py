"""Choose between two alignments in one launch; the host learns nothing of it."""

from typing import NamedTuple

import torch
from torch import Tensor

from prefill_kernels.block_choice.configs import CHUNK, NUM_WARPS
from prefill_kernels.block_choice.kernel import block_choice_kernel
from prefill_kernels.errors import (
    check_device,
    check_dtype,
    check_launchable,
    check_shape,
    check_unit_stride,
    require,
)
from prefill_kernels.prepared import PreparedLaunches, look, place


class Aligned(NamedTuple):
    """Rows by expert, each expert's filled up to whole blocks, and what computing them takes.

    Attributes:
        experts: int32 `[blocks]` or longer, of each block its expert; negative where another device
            has it, which takes no time here.
        padded: int32 `[1]`, rows of all blocks.
        block: rows of a block.
        fixed, row: time besides the rows, and of a row; any unit, the same on both sides.
    """

    experts: Tensor
    padded: Tensor
    block: int
    fixed: float
    row: float


def choose_block(first: Aligned, second: Aligned) -> None:
    """Take the side that takes less time, the first on a tie: `padded` of the other becomes 0.

    ::

        time = fixed + row * block * |{i < padded / block: experts[i] >= 0}|

    SGLang's fused kernel reads `padded` first, and a program behind it returns at once. So both
    sides can be launched, and one computes. Times are compared in float32.

    Raises:
        KernelArgumentError: a dtype, shape, stride, device or block that the kernel cannot take;
            nothing was launched.
    """
    tensors = (first.experts, first.padded, second.experts, second.padded)
    key = (place(first.padded), first.block, second.block, *map(look, tensors))
    if _CHECKED.get(key) is None:
        _check("first", first, first.padded.device)
        _check("second", second, first.padded.device)
        _CHECKED.keep(key, True)
    block_choice_kernel[(1,)](*_arguments(first), *_arguments(second), CHUNK, num_warps=NUM_WARPS)


_CHECKED = PreparedLaunches[bool]()


def _arguments(side: Aligned) -> tuple[Tensor, Tensor, int, float, float]:
    return side.experts, side.padded, side.block, float(side.fixed), float(side.row)


def _check(name: str, side: Aligned, device: torch.device) -> None:
    require(side.block > 0, f"{name}.block", side.block, "a block has at least one row")
    check_launchable(f"{name}.padded", side.padded)
    check_shape(f"{name}.padded", side.padded, (1,))
    check_shape(f"{name}.experts", side.experts, (None,))
    for field, tensor in (("padded", side.padded), ("experts", side.experts)):
        check_dtype(f"{name}.{field}", tensor, (torch.int32,))
        check_device(f"{name}.{field}", tensor, device)
        check_unit_stride(f"{name}.{field}", tensor)
