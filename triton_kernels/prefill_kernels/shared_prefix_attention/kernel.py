"""The attention kernel; `op.py` holds its contract.

A program computes one tile and one key head. Its BLOCK_TOKENS * GROUP_PAD query rows, token by
token and within a token head by head, are one dot operand: a key is loaded once for all query heads
that share it, and short rows fill the tensor cores together. The online softmax (Milakov and
Gimelshein 2018; FlashAttention-2, Dao 2023) runs in base 2. For this, the last factor of the
scores, which is their scale or their soft cap, is passed multiplied by log2(e).
"""

import triton
import triton.language as tl

LN_2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(2**30)  # beyond every key


@triton.jit
def attention_kernel(
    q_ptr,  # [Q, H, HEAD_DIM]
    q_strides,  # of every tensor: elements from token (or slot) to token and from head to head
    k_ptr,  # [T, KH, HEAD_DIM]
    k_strides,
    v_ptr,  # [T, KH, VALUE_DIM]
    v_strides,
    k_cache_ptr,  # [slots, KH, HEAD_DIM]
    k_cache_strides,
    v_cache_ptr,  # [slots, KH, VALUE_DIM]
    v_cache_strides,
    page_table_ptr,  # [entries]
    query_token_ptr,  # [Q]
    segment_start_ptr,  # [Q]
    tiles_ptr,  # [num_tiles, 10]
    out_ptr,  # [parts, Q, H, VALUE_DIM]
    out_strides,  # of these two from part to part as well
    lse_ptr,  # [parts, Q, H]
    lse_strides,
    sinks_ptr,  # [H] or None
    scale,  # of scores, times log2(e); with a soft cap, 2 * scale / cap instead
    num_key_heads,
    CACHED: tl.constexpr,
    FRESH: tl.constexpr,
    OWN: tl.constexpr,
    SOFT_CAP: tl.constexpr,  # of scores, times log2(e); 0: none
    WINDOW: tl.constexpr,  # tokens before its own that a query sees; -1: all
    GROUP_SIZE: tl.constexpr,  # query heads of one key head
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    GROUP_PAD: tl.constexpr,  # this and all below are powers of two
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    BLOCK_M: tl.constexpr = BLOCK_TOKENS * GROUP_PAD
    # Key heads run fastest, so that the first tiles, which take longest, start first in all heads.
    tile_ptr = tiles_ptr + 10 * (tl.program_id(0) // num_key_heads)
    key_head = (tl.program_id(0) % num_key_heads).to(tl.int64)
    query_start = tl.load(tile_ptr)
    query_stop = tl.load(tile_ptr + 1)
    if query_start >= query_stop:
        return

    row = tl.arange(0, BLOCK_M)
    query = query_start + row // GROUP_PAD
    query_wide = query.to(tl.int64)
    head = key_head * GROUP_SIZE + row % GROUP_PAD
    used = (query < query_stop) & (row % GROUP_PAD < GROUP_SIZE)
    dim = tl.arange(0, BLOCK_D)[None, :]
    value_dim = tl.arange(0, BLOCK_DV)[None, :]
    q_rows = query_wide * q_strides[0] + head * q_strides[1]
    q_mask = used[:, None] & (dim < HEAD_DIM)
    q = tl.load(q_ptr + q_rows[:, None] + dim, mask=q_mask, other=0.0)

    # The largest score so far, and the sums of weights and of weighted values relative to it.
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    part = tl.load(tile_ptr + 9).to(tl.int64)
    if sinks_ptr is not None:
        # A sink is a key that all queries of its head have seen, and whose value is 0.
        sinks = tl.load(sinks_ptr + head, mask=used, other=0.0).to(tl.float32) * LOG2_E
        row_max = tl.where(part == 0, sinks, row_max)
        row_sum = tl.where(part == 0, 1.0, row_sum)
    state = (row_max, row_sum, acc)
    WIDTHS: tl.constexpr = (HEAD_DIM, VALUE_DIM)

    fresh_start = tl.load(tile_ptr + 2)
    fresh_stop = tl.load(tile_ptr + 3)
    cached_len = tl.load(tile_ptr + 7)
    segment = tl.load(segment_start_ptr + query, mask=used, other=0)[:, None]
    token = tl.load(query_token_ptr + query, mask=used, other=-1)[:, None]
    # The first key that a query sees in each part. The parts are consecutive in its prompt: if the
    # window begins n tokens before the query's own row, it begins n before the end of the prefix.
    cached_first = 0
    fresh_first = fresh_start
    own_first = segment
    if WINDOW >= 0:
        begin = tl.where(used[:, None], token - segment - WINDOW, NOTHING)
        own_first = segment + tl.maximum(begin, 0)
        begin += tl.load(tile_ptr + 8)
        cached_first = tl.maximum(cached_len + fresh_stop - fresh_start + begin, 0)
        fresh_first = tl.maximum(fresh_stop + begin, fresh_start)

    if CACHED:
        cache = (
            k_cache_ptr + key_head * k_cache_strides[1] + dim,
            v_cache_ptr + key_head * v_cache_strides[1] + value_dim,
            k_cache_strides[0],
            v_cache_strides[0],
            page_table_ptr + tl.load(tile_ptr + 6),
        )
        state = _attend_prefix(
            *(state, q, cache, 0, cached_len, cached_first, scale),
            *(SOFT_CAP, WINDOW, True, WIDTHS, BLOCK_N),
        )

    tokens = (
        k_ptr + key_head * k_strides[1] + dim,
        v_ptr + key_head * v_strides[1] + value_dim,
        k_strides[0],
        v_strides[0],
        page_table_ptr,
    )
    if FRESH:
        state = _attend_prefix(
            *(state, q, tokens, fresh_start, fresh_stop, fresh_first, scale),
            *(SOFT_CAP, WINDOW, False, WIDTHS, BLOCK_N),
        )
    if OWN:
        start = tl.load(tile_ptr + 4)
        stop = tl.load(tile_ptr + 5)
        if WINDOW >= 0:
            full_stop = _first_block(start, own_first, BLOCK_N)
        else:
            # In a tile of one segment every query sees the keys up to the first query.
            one_segment = tl.load(segment_start_ptr + query_stop - 1) == start
            seen_by_all = tl.minimum(tl.load(query_token_ptr + query_start) + 1, stop) - start
            full_stop = start + tl.where(one_segment, seen_by_all // BLOCK_N * BLOCK_N, 0)
            state = _attend(
                *(state, q, tokens, start, full_stop, own_first, token, scale),
                *(SOFT_CAP, False, False, WIDTHS, BLOCK_N),
            )
        state = _attend(
            *(state, q, tokens, full_stop, stop, own_first, token, scale),
            *(SOFT_CAP, True, False, WIDTHS, BLOCK_N),
        )

    row_max, row_sum, acc = state
    # A row that saw no key: out 0, and lse -inf because row_max is.
    row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    out_rows = part * out_strides[0] + query_wide * out_strides[1] + head * out_strides[2]
    out_mask = used[:, None] & (value_dim < VALUE_DIM)
    out = (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_rows[:, None] + value_dim, out, mask=out_mask)
    lse_rows = part * lse_strides[0] + query_wide * lse_strides[1] + head * lse_strides[2]
    tl.store(lse_ptr + lse_rows, (row_max + tl.log2(row_sum)) * LN_2, mask=used)


@triton.jit
def _attend_prefix(
    state,
    q,
    source,
    start,
    stop,
    first,
    scale,
    SOFT_CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    PAGED: tl.constexpr,
    WIDTHS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add the attention to prefix keys start..stop-1 to `state`.

    Without a window every query sees all of them: whole blocks need no mask, the rest does. With a
    window, all blocks from the first one that any query sees are masked.
    """
    if WINDOW >= 0:
        full_stop = _first_block(start, first, BLOCK_N)
    else:
        full_stop = start + (stop - start) // BLOCK_N * BLOCK_N
        state = _attend(
            *(state, q, source, start, full_stop, first, stop - 1, scale),
            *(SOFT_CAP, False, PAGED, WIDTHS, BLOCK_N),
        )
    return _attend(
        *(state, q, source, full_stop, stop, first, stop - 1, scale),
        *(SOFT_CAP, True, PAGED, WIDTHS, BLOCK_N),
    )


@triton.jit
def _first_block(start, first, BLOCK_N: tl.constexpr):
    """Where the block of keys begins, counted from `start`, that holds the earliest of `first`."""
    return start + (tl.min(first) - start) // BLOCK_N * BLOCK_N


@triton.jit
def _attend(
    state,  # row_max [BLOCK_M], row_sum [BLOCK_M], acc [BLOCK_M, BLOCK_DV]
    q,  # [BLOCK_M, BLOCK_D]
    source,  # pointers to key 0 [1, BLOCK_D] and value 0 [1, BLOCK_DV], their strides, page table
    start,
    stop,
    first,  # a query sees the keys first..last; each is a scalar or [BLOCK_M, 1]
    last,
    scale,
    SOFT_CAP: tl.constexpr,
    MASKED: tl.constexpr,  # if not: every query sees every key, and the keys fill whole blocks
    PAGED: tl.constexpr,  # if not: keys lie where their number says
    WIDTHS: tl.constexpr,  # HEAD_DIM, VALUE_DIM
    BLOCK_N: tl.constexpr,
):
    """Add the attention to keys start..stop-1 to `state`."""
    row_max, row_sum, acc = state
    k_ptrs, v_ptrs, k_stride, v_stride, page_table_ptr = source
    for block in tl.range(start, stop, BLOCK_N):
        key = block + tl.arange(0, BLOCK_N)
        slot = _slots(page_table_ptr, key, stop, MASKED, PAGED)[:, None]
        exists = (key < stop)[:, None]
        k = _load(k_ptrs + slot * k_stride, exists, MASKED, WIDTHS[0])
        # `input_precision` affects float32 only: three TF32 products are exact enough for it.
        scores = tl.dot(q, k.T, input_precision="tf32x3")
        factor = scale
        if SOFT_CAP > 0:
            # tanh(x) = 2 * sigmoid(2 * x) - 1
            scores = 2 * tl.sigmoid(scores * scale) - 1
            factor = SOFT_CAP
        if MASKED:
            visible = (key[None, :] >= first) & (key[None, :] <= last)
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1) * factor)
        # While a row has seen no key its weights must be exp2(-inf), not exp2(-inf + inf).
        base = tl.where(new_max == float("-inf"), 0.0, new_max) if MASKED else new_max
        weights = tl.exp2(scores * factor - base[:, None])
        rescale = tl.exp2(row_max - base)
        row_sum = row_sum * rescale + tl.sum(weights, 1)
        row_max = new_max
        v = _load(v_ptrs + slot * v_stride, exists, MASKED, WIDTHS[1])
        acc = tl.dot(weights.to(q.dtype), v, acc * rescale[:, None], input_precision="tf32x3")
    return row_max, row_sum, acc


@triton.jit
def _slots(page_table_ptr, key, stop, MASKED: tl.constexpr, PAGED: tl.constexpr):
    """The rows of k and v that hold the keys; int64, as a cache has more than 2**31 elements."""
    if not PAGED:
        return key.to(tl.int64)
    # Keys beyond the last get its slot, and are not loaded: a mask here makes the kernel spill.
    entry = tl.minimum(key, stop - 1) if MASKED else key
    return tl.load(page_table_ptr + entry).to(tl.int64)


@triton.jit
def _load(pointers, exists, MASKED: tl.constexpr, WIDTH: tl.constexpr):
    """Keys or values; 0 for those that do not exist and in the padding of their dimension."""
    PADDED: tl.constexpr = pointers.shape[1]
    if MASKED or PADDED != WIDTH:
        dim = tl.arange(0, PADDED)[None, :]
        return tl.load(pointers, mask=exists & (dim < WIDTH), other=0.0)
    return tl.load(pointers)
