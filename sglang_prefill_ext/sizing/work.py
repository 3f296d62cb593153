"""Counts the least work of a packed forward. Pure.

This counts multiplications and additions (two operations per multiply-add) of linear layers,
attention and read-out of a decoder, and the bytes of weights, keys and values. It leaves out norms,
rotary embedding, softmax and activations.
"""

from __future__ import annotations

from sglang_prefill_ext.layout.recurrence_parts import chunks_of
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.shape import Shape


def packed_operations(model: ModelShape, shape: Shape, labels: int) -> int:
    """Least operations of a packed forward: the prefix once, every row's rest, the labels' columns.

    The last layer needs keys and values of all tokens, and all else at the rows' last tokens only.
    A softmax over the labels needs only their logits, because the normalisation over the vocabulary
    cancels out.
    """
    tokens = shape.packed_tokens
    others = tokens * (model.body_operations - model.layer_operations + model.rule_operations)
    others += (model.attention_layers - 1) * shape.packed_pairs * model.pair_operations
    last = (
        tokens * model.kv_operations
        + shape.items * (model.layer_operations - model.kv_operations)
        + shape.items * shape.row_tokens * model.pair_operations
    )
    return others + last + shape.items * model.readout_operations(labels)


def packed_bytes(
    model: ModelShape, shape: Shape, labels: int, number_bytes: int, requests: int = 1
) -> int:
    """Least traffic of a packed forward, in bytes: weights once, K/V written and read once.

    Args:
        requests: how many requests of that shape share the forward.
    """
    tokens = requests * shape.packed_tokens
    numbers = model.read_weights(tokens) + kv_numbers(model, tokens)
    moved = number_bytes * (numbers + labels * model.hidden)
    if model.recurrent is None:
        return moved
    chunks = chunks_of(shape.prefix_tokens) + shape.items * chunks_of(shape.suffix_tokens)
    states = model.recurrent.state_bytes(shape.items, chunks, number_bytes)
    return moved + requests * states


def kv_numbers(model: ModelShape, tokens: int) -> int:
    """Keys and values of so many tokens, written and read once."""
    return 2 * model.attention_layers * model.kv_heads * (model.head_dim + model.value_dim) * tokens
