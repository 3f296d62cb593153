"""Counts the least work of a packed forward. Pure.

This counts multiplications and additions (two operations per multiply-add) of linear maps,
convolutions, recurrences, attention and read-out of a decoder, and the bytes of weights, states,
keys and values. It leaves out norms, rotary embedding, softmax and activations.
"""

from __future__ import annotations

from sglang_prefill_ext.sizing.mixers import Attention
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.recurrences import Recurrence
from sglang_prefill_ext.sizing.shape import Shape

BFLOAT16_BYTES = 2


def packed_operations(model: ModelShape, shape: Shape, labels: int) -> int:
    """Least operations of a packed forward: the prefix once, every row's rest, the labels' columns.

    The last attention needs keys and values of all tokens. All else from there on is needed at the
    rows' last tokens only; but a recurrence needs all of it at all tokens. A softmax over the
    labels needs only their logits, because the normalisation over the vocabulary cancels out.
    """
    before = sum(count * each.operations(shape) for each, count in model.before.items())
    behind = sum(2 * count * each.active for each, count in model.behind.items())
    row = behind + model.readout_operations(labels)
    return before + model.last_mixer.last_operations(shape) + shape.items * row


def packed_bytes(
    model: ModelShape,
    shape: Shape,
    labels: int,
    *,
    weight_bytes: float = BFLOAT16_BYTES,
    number_bytes: int = BFLOAT16_BYTES,
    requests: int = 1,
) -> float:
    """Least traffic of a packed forward, in bytes: weights once, K/V written and read once.

    Args:
        weight_bytes: of a weight.
        number_bytes: of an element of K/V or of a state between chunks.
        requests: how many requests of that shape share the forward.
    """
    tokens = requests * shape.packed_tokens
    weights = model.read_weights(tokens) + labels * model.hidden
    states = sum(
        count * each.state_bytes(shape, requests, number_bytes)
        for each, count in model.counts.items()
        if isinstance(each, Recurrence)
    )
    return weight_bytes * weights + number_bytes * kv_numbers(model, tokens) + states


def kv_numbers(model: ModelShape, tokens: int) -> int:
    """Keys and values of so many tokens, written and read once."""
    return tokens * sum(
        count * each.kv_numbers
        for each, count in model.counts.items()
        if isinstance(each, Attention)
    )
