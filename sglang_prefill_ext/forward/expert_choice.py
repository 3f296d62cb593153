"""Let the device choose, by the routing of this forward, which of two entries computes a layer."""

from __future__ import annotations

from prefill_kernels.block_choice import Aligned, choose_block
from torch import Tensor

from sglang_prefill_ext.moe.policy import Pair


def leave_one(pair: Pair, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> None:
    """Choose one entry of a pair, and set the row count of the other one to 0, in one launch.

    Nothing is copied to the host.

    Args:
        first, second: for each entry, the expert of each of its blocks, int32 ``[blocks]`` or
            longer, and the row count of all blocks, int32 ``[1]``.
    """
    choose_block(
        Aligned(*first, pair.first.block, *pair.first_time),
        Aligned(*second, pair.second.block, *pair.second_time),
    )
