"""Which of two entries computes a layer, chosen on the device by the routing of this forward."""

from __future__ import annotations

from prefill_kernels.block_choice import Aligned, choose_block
from torch import Tensor

from sglang_prefill_ext.moe.policy import Pair


def leave_one(pair: Pair, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> None:
    """Take the rows from the alignment of the entry that is not taken, in one launch. Nothing is
    copied to the host.

    Args:
        first, second: of each entry the experts of its blocks, int32 ``[blocks]`` or longer, and
            the rows of all blocks, int32 ``[1]``, which become 0 for one of them.
    """
    choose_block(
        Aligned(*first, pair.first.block, *pair.first_time),
        Aligned(*second, pair.second.block, *pair.second_time),
    )
