"""What the operation count would allow: arithmetic of the stock and the packed forward (pure).

Counts multiplications and additions (two operations per multiply-add) of linear layers,
attention and read-out, for a dense decoder whose every layer runs on every token. Norms,
rotary embedding, softmax and all host work are left out, so a measured ratio may exceed the
one counted here: the extension also removes work per row that is no arithmetic at all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.workloads import Shape


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a dense decoder with a gated MLP."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int

    @classmethod
    def from_directory(cls, model: Path) -> Self:
        """Read the `config.json` of a Qwen-, Llama- or Mistral-like model."""
        config = json.loads((model / "config.json").read_text())
        heads = config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=heads,
            kv_heads=config["num_key_value_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            vocabulary=config["vocab_size"],
        )

    @property
    def token_operations(self) -> int:
        """Of all linear layers for one token: QKV, output projection, gate, up and down."""
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_dim * self.hidden
        mlp = 3 * self.hidden * self.intermediate
        return 2 * self.layers * (attention + mlp)

    @property
    def pair_operations(self) -> int:
        """Of attention for one pair of query and key token: dot product and weighted sum."""
        return 2 * self.layers * 2 * self.heads * self.head_dim

    def readout_operations(self, columns: int) -> int:
        """Of the language-model head for one row and `columns` entries of the vocabulary."""
        return 2 * self.hidden * columns


def stock_operations(model: ModelShape, shape: Shape) -> int:
    """Of a forward over full rows, each with its own copy of the query, without a prefix cache.

    Stock normalises over the whole vocabulary before it picks the labels.
    """
    row = (
        shape.row_tokens * model.token_operations
        + _causal_pairs(shape.row_tokens) * model.pair_operations
        + model.readout_operations(model.vocabulary)
    )
    return shape.items * row


def packed_operations(model: ModelShape, shape: Shape, labels: int) -> int:
    """The least of a packed forward: the prefix once, every row's rest, the labels' columns.

    A softmax over the labels needs only their logits: what normalises over the vocabulary
    cancels out.
    """
    prefix = shape.prefix_tokens
    suffix = shape.row_tokens - prefix
    tokens = prefix + shape.items * suffix
    pairs = _causal_pairs(prefix) + shape.items * (suffix * prefix + _causal_pairs(suffix))
    return (
        tokens * model.token_operations
        + pairs * model.pair_operations
        + shape.items * model.readout_operations(labels)
    )


def operation_ratio(model: ModelShape, shape: Shape, labels: int) -> float:
    """Stock's operations for each operation of the packed forward; at least about 1."""
    return stock_operations(model, shape) / packed_operations(model, shape, labels)


def _causal_pairs(tokens: int) -> int:
    return tokens * (tokens + 1) // 2
