"""The least that a packed forward must do: operations and bytes. Pure.

Counts multiplications and additions (two operations per multiply-add) of linear layers,
attention and read-out of a decoder, and the bytes of weights, keys and values. Norms, rotary
embedding, softmax, activations and all host work are left out.
"""

from __future__ import annotations

from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.shape import Shape


def packed_operations(model: ModelShape, shape: Shape, labels: int) -> int:
    """The least of a packed forward: the prefix once, every row's rest, the labels' columns.

    The last layer needs keys and values of all tokens, and all else at the rows' last tokens only.
    A softmax over the labels needs only their logits: what normalises over the vocabulary
    cancels out.
    """
    tokens = shape.packed_tokens
    others = tokens * (model.body_operations - model.layer_operations)
    others += (model.layers - 1) * shape.packed_pairs * model.pair_operations
    last = (
        tokens * model.kv_operations
        + shape.items * (model.layer_operations - model.kv_operations)
        + shape.items * shape.row_tokens * model.pair_operations
    )
    return others + last + shape.items * model.readout_operations(labels)


def packed_bytes(
    model: ModelShape, shape: Shape, labels: int, number_bytes: int, requests: int = 1
) -> int:
    """The least traffic of a packed forward: weights once, K/V written and read once.

    Args:
        requests: of that shape that share the forward.
    """
    tokens = requests * shape.packed_tokens
    numbers = model.read_weights(tokens) + kv_numbers(model, tokens)
    return number_bytes * (numbers + labels * model.hidden)


def kv_numbers(model: ModelShape, tokens: int) -> int:
    """Keys and values of so many tokens, written and read once."""
    return 2 * model.layers * 2 * model.kv_heads * model.head_dim * tokens
