"""Choose between two alignments in one launch, without telling the host."""

from typing import NamedTuple

import torch
from torch import Tensor

from prefill_kernels.block_choice.configs import CHUNK, NUM_WARPS
from prefill_kernels.block_choice.kernel import block_choice_kernel
from prefill_kernels.errors import check_launchable, check_tensor, require
from prefill_kernels.prepared import PreparedLaunches, look, place


class Aligned(NamedTuple):
    """Rows grouped by expert and padded to whole blocks, and the time to compute them.

    Attributes:
        experts: int32 `[blocks]` or longer, the expert of each block; negative if another device
            has it, so that the block takes no time here.
        padded: int32 `[1]`, rows of all blocks.
        block: rows of a block.
        fixed, row: time of a launch apart from its rows, and of a row; any unit, but the same for
            both alignments.
    """

    experts: Tensor
    padded: Tensor
    block: int
    fixed: float
    row: float


def choose_block(first: Aligned, second: Aligned) -> None:
    """Choose the alignment that takes less time, the first on a tie; `padded` of the other gets 0.

    ::

        time = fixed + row * block * |{i < padded / block: experts[i] >= 0}|

    SGLang's fused kernel reads `padded` first, and a program whose rows are beyond it returns at
    once. So both alignments can be launched, and only one computes. Times are compared in float32.

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
    check_tensor(f"{name}.padded", side.padded, (1,), (torch.int32,), device)
    check_tensor(f"{name}.experts", side.experts, (None,), (torch.int32,), device)
