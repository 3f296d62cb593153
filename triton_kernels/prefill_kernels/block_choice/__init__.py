"""Choose, on the device, between two alignments of rows to blocks."""

from prefill_kernels.block_choice.op import Aligned, choose_block

__all__ = ["Aligned", "choose_block"]
