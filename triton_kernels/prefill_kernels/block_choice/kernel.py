"""The kernel of block_choice: one program compares the times of both alignments."""

import triton
import triton.language as tl


@triton.jit
def _rows(experts, padded, block, CHUNK: tl.constexpr):
    """Rows that are computed: those of blocks whose expert is here; float32."""
    blocks = padded // block
    total = 0
    for start in range(0, blocks, CHUNK):
        place = start + tl.arange(0, CHUNK)
        ids = tl.load(experts + place, mask=place < blocks, other=-1)
        total += tl.sum((ids >= 0).to(tl.int32))
    return (total * block).to(tl.float32)


# A new block size must not cause a compilation while serving.
@triton.jit(do_not_specialize=["first_block", "second_block"])
def block_choice_kernel(
    first_experts,  # int32, of each block the expert, -1 for one of another device
    first_padded,  # int32 [1], rows of all blocks
    first_block,
    first_fixed,
    first_row,
    second_experts,
    second_padded,
    second_block,
    second_fixed,
    second_row,
    CHUNK: tl.constexpr,
):
    first, second = tl.load(first_padded), tl.load(second_padded)
    first_time = first_fixed + first_row * _rows(first_experts, first, first_block, CHUNK)
    second_time = second_fixed + second_row * _rows(second_experts, second, second_block, CHUNK)
    is_first = first_time <= second_time
    # Another warp may still have to read what this one overwrites.
    tl.debug_barrier()
    tl.store(first_padded, tl.where(is_first, first, 0))
    tl.store(second_padded, tl.where(is_first, 0, second))
