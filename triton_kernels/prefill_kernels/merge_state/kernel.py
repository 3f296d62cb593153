"""Kernels that merge parts of attention; a program merges all parts of some (token, head) pairs.

`merge_states_kernel` takes each part as a tensor, and may overwrite one of them.
`merge_parts_kernel` takes any number of parts in one tensor.
"""

import triton
import triton.language as tl


# Whether the number of pairs is a multiple of 16 must not cause a compilation while serving.
@triton.jit(do_not_specialize=["num_pairs"])
def merge_states_kernel(
    outs,  # of each part: [tokens, heads, head_dim]
    out_strides,  # of each part: (token, head)
    lses,  # of each part: float32 [tokens, heads], contiguous
    merged,
    merged_strides,
    merged_lse,
    merged_lse_strides,
    num_pairs,
    heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    pair = tl.program_id(0) * BLOCK_PAIRS + tl.arange(0, BLOCK_PAIRS)
    in_range = pair < num_pairs
    token = (pair // heads).to(tl.int64)
    head = (pair % heads).to(tl.int64)
    dim = tl.arange(0, BLOCK_DIM)[None, :]

    largest = tl.full((BLOCK_PAIRS,), float("-inf"), tl.float32)
    for i in tl.static_range(len(lses)):
        lse = _load_lse(lses[i], pair, in_range)
        largest = tl.maximum(largest, lse, propagate_nan=tl.PropagateNan.ALL)
    # Where every part is empty, subtracting 0 leaves each a weight of exp(-inf) = 0.
    shift = tl.where(largest == float("-inf"), 0.0, largest)

    total = tl.zeros((BLOCK_PAIRS,), tl.float32)
    for i in tl.static_range(len(lses)):
        total += tl.exp(_load_lse(lses[i], pair, in_range) - shift)
    empty = total == 0.0
    divisor = tl.where(empty, 1.0, total)

    acc = tl.zeros((BLOCK_PAIRS, BLOCK_DIM), tl.float32)
    for i in tl.static_range(len(outs)):
        lse = _load_lse(lses[i], pair, in_range)
        weight = (tl.exp(lse - shift) / divisor)[:, None]
        # A part of weight zero may hold anything, NaN included: it is not read.
        used = (weight != 0.0) & (dim < HEAD_DIM)
        rows = (token * out_strides[i][0] + head * out_strides[i][1])[:, None]
        acc += weight * tl.load(outs[i] + rows + dim, mask=used, other=0.0).to(tl.float32)

    # In place, another warp may still have to read what this one overwrites.
    tl.debug_barrier()
    rows = (token * merged_strides[0] + head * merged_strides[1])[:, None]
    in_row = in_range[:, None] & (dim < HEAD_DIM)
    tl.store(merged + rows + dim, acc.to(merged.dtype.element_ty), mask=in_row)
    lse = tl.where(empty, float("-inf"), shift + tl.log(divisor))
    lse_offsets = token * merged_lse_strides[0] + head * merged_lse_strides[1]
    tl.store(merged_lse + lse_offsets, lse, mask=in_range)


@triton.jit(do_not_specialize=["num_parts", "num_pairs"])
def merge_parts_kernel(
    outs,  # [parts, tokens, heads, head_dim]
    out_strides,  # (part, token, head)
    lses,  # float32 [parts, tokens, heads]
    lse_strides,
    merged,
    merged_strides,
    merged_lse,
    merged_lse_strides,
    num_parts,
    num_pairs,
    heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    pair = tl.program_id(0) * BLOCK_PAIRS + tl.arange(0, BLOCK_PAIRS)
    in_range = pair < num_pairs
    token = (pair // heads).to(tl.int64)
    head = (pair % heads).to(tl.int64)
    dim = tl.arange(0, BLOCK_DIM)[None, :]
    in_row = in_range[:, None] & (dim < HEAD_DIM)
    lse_ptrs = lses + token * lse_strides[1] + head * lse_strides[2]
    out_ptrs = outs + (token * out_strides[1] + head * out_strides[2])[:, None] + dim

    # The largest lse so far, and the sums of weights and of weighted values relative to it.
    largest = tl.full((BLOCK_PAIRS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_PAIRS,), tl.float32)
    acc = tl.zeros((BLOCK_PAIRS, BLOCK_DIM), tl.float32)
    for _ in range(num_parts):
        lse = tl.load(lse_ptrs, mask=in_range, other=float("-inf"))
        new = tl.maximum(largest, lse, propagate_nan=tl.PropagateNan.ALL)
        # While all parts are empty, subtracting 0 leaves each a weight of exp(-inf) = 0.
        shift = tl.where(new == float("-inf"), 0.0, new)
        weight, rescale = tl.exp(lse - shift), tl.exp(largest - shift)
        used = in_row & (weight != 0.0)[:, None]
        out = tl.load(out_ptrs, mask=used, other=0.0)
        # A sum whose weight becomes zero may hold anything, NaN included: it is dropped.
        kept = tl.where(rescale[:, None] != 0.0, acc * rescale[:, None], 0.0)
        acc = kept + weight[:, None] * out.to(tl.float32)
        total = total * rescale + weight
        largest = new
        lse_ptrs += lse_strides[0]
        out_ptrs += out_strides[0]

    divisor = tl.where(total == 0.0, 1.0, total)
    rows = (token * merged_strides[0] + head * merged_strides[1])[:, None]
    out = (acc / divisor[:, None]).to(merged.dtype.element_ty)
    tl.store(merged + rows + dim, out, mask=in_row)
    lse_offsets = token * merged_lse_strides[0] + head * merged_lse_strides[1]
    tl.store(merged_lse + lse_offsets, largest + tl.log(divisor), mask=in_range)


@triton.jit
def _load_lse(lse, pair, in_range):
    return tl.load(lse + pair, mask=in_range, other=float("-inf"))
