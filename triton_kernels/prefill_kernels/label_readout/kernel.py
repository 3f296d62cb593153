"""Logits of a few labels, and the log-sum-exp over blocks of the vocabulary."""

import triton
import triton.language as tl


# Triton must not specialise on numbers that do not affect the width of loads: otherwise another
# number of rows, for example, would cause a compilation while serving.
@triton.jit(do_not_specialize=["vocab_start", "vocab_size"])
def label_logits_kernel(
    hidden,  # [rows, dim]
    weight,  # [vocabulary, dim]
    label_ids,  # [labels]
    label_rows,  # [labels]
    logits,  # float32 [labels]
    vocab_start,
    vocab_size,
    dim,
    hidden_stride,
    weight_stride,
    scale,
    SOFTCAP: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """A program computes the logit of one label: the product of its weight and its row."""
    label = tl.program_id(0)
    token = tl.load(label_ids + label).to(tl.int64) - vocab_start
    row = tl.load(label_rows + label).to(tl.int64)
    held = (token >= 0) & (token < vocab_size)

    acc = tl.zeros((BLOCK_DIM,), tl.float32)
    for start in range(0, dim, BLOCK_DIM):
        column = start + tl.arange(0, BLOCK_DIM)
        used = held & (column < dim)
        x = tl.load(hidden + row * hidden_stride + column, mask=used, other=0.0)
        w = tl.load(weight + token * weight_stride + column, mask=used, other=0.0)
        acc += x.to(tl.float32) * w.to(tl.float32)
    logit = _scaled(tl.sum(acc, axis=0), scale, SOFTCAP)
    tl.store(logits + label, tl.where(held, logit, float("-inf")))


@triton.jit(do_not_specialize=["num_rows", "vocab_size", "block_lse_stride"])
def block_lse_kernel(
    hidden,  # [rows, dim]
    weight,  # [vocabulary, dim]
    block_lse,  # float32 [rows, vocabulary blocks]
    num_rows,
    vocab_size,
    dim,
    hidden_stride,
    weight_stride,
    block_lse_stride,
    scale,
    SOFTCAP: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """One program multiplies a block of rows with a block of the vocabulary and reduces it.

    Blocks of rows are the fastest axis of the grid: programs that run together share a block of
    weights, so that the weights come from device memory once.
    """
    vocab_block = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token = vocab_block * BLOCK_VOCAB + tl.arange(0, BLOCK_VOCAB)
    column = tl.arange(0, BLOCK_DIM)
    row_in_range = row < num_rows
    token_in_range = token < vocab_size
    x_block = hidden + row.to(tl.int64)[:, None] * hidden_stride + column[None, :]
    w_block = weight + token.to(tl.int64)[None, :] * weight_stride + column[:, None]

    acc = tl.zeros((BLOCK_ROWS, BLOCK_VOCAB), tl.float32)
    for start in range(0, dim, BLOCK_DIM):
        in_dim = column < dim - start
        x = tl.load(x_block + start, mask=row_in_range[:, None] & in_dim[None, :], other=0.0)
        w = tl.load(w_block + start, mask=in_dim[:, None] & token_in_range[None, :], other=0.0)
        # Exact for float32, too: float32 is used for parity with other float32 code.
        acc = tl.dot(x, w, acc, input_precision="ieee")

    logits = tl.where(token_in_range[None, :], _scaled(acc, scale, SOFTCAP), float("-inf"))
    largest = tl.max(logits, axis=1)
    lse = largest + tl.log(tl.sum(tl.exp(logits - largest[:, None]), axis=1))
    target = row.to(tl.int64) * block_lse_stride + vocab_block
    tl.store(block_lse + target, lse, mask=row_in_range)


@triton.jit
def _scaled(logits, scale, SOFTCAP: tl.constexpr):
    logits *= scale
    if SOFTCAP > 0:
        # tanh(x) = 2 * sigmoid(2 * x) - 1
        logits = SOFTCAP * (2 * tl.sigmoid(2 * logits / SOFTCAP) - 1)
    return logits
