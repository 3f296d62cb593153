"""choose_block on the host, in float64."""

from prefill_kernels.block_choice.op import Aligned


def is_first_reference(first: Aligned, second: Aligned) -> bool:
    """Whether `choose_block` chooses the first; waits for the device."""
    return _time(first) <= _time(second)


def _time(side: Aligned) -> float:
    blocks = int(side.padded) // side.block
    rows = side.block * int((side.experts[:blocks] >= 0).sum())
    return side.fixed + side.row * rows
