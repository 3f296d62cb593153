"""The least that a forward must do: operations and bytes of the stock and the packed one (pure).

Counts multiplications and additions (two operations per multiply-add) of linear layers,
attention and read-out of a dense decoder, and the bytes of weights, keys and values. Norms,
rotary embedding, softmax, activations and all host work are left out, so a measured ratio may
exceed the one counted here: the extension also removes work per row that is no arithmetic at all.

``python -m bench.floor MODEL_DIR 60+2x50 --tflops 989 --gb-s 3350`` prints the time that a device
of such peaks needs at least; a measured time divided by it says how much is left to gain. What the
host is expected to need for the same forward stands below (`bench.host_cost`): the longer of the
two is what one forward after the other takes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import typer

from bench import host_cost
from bench.workloads import LABEL_IDS, Shape
from sglang_prefill_ext.config import GRAPH_TOKENS


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
    def kv_operations(self) -> int:
        """Of one layer's key and value projections for one token."""
        return 2 * 2 * self.kv_heads * self.head_dim * self.hidden

    @property
    def layer_operations(self) -> int:
        """Of all linear layers of one layer for one token: QKV, output, gate, up and down."""
        query_and_output = 2 * self.heads * self.head_dim * self.hidden
        return self.kv_operations + 2 * (query_and_output + 3 * self.hidden * self.intermediate)

    @property
    def pair_operations(self) -> int:
        """Of one layer's attention for one pair of query and key token: dot product and sum."""
        return 2 * 2 * self.heads * self.head_dim

    @property
    def weights(self) -> int:
        """Numbers in all layers; the output head is counted with the read-out."""
        return self.layers * self.layer_operations // 2

    def readout_operations(self, columns: int) -> int:
        """Of the language-model head for one row and `columns` entries of the vocabulary."""
        return 2 * self.hidden * columns


def stock_operations(model: ModelShape, shape: Shape) -> int:
    """Of a forward over full rows, each with its own copy of the query, without a prefix cache.

    Stock computes every layer for every token, and normalises over the whole vocabulary before it
    picks the labels.
    """
    layer = shape.row_tokens * model.layer_operations
    layer += _causal_pairs(shape.row_tokens) * model.pair_operations
    return shape.items * (model.layers * layer + model.readout_operations(model.vocabulary))


def packed_operations(model: ModelShape, shape: Shape, labels: int) -> int:
    """The least of a packed forward: the prefix once, every row's rest, the labels' columns.

    The last layer needs keys and values of all tokens, and all else at the rows' last tokens only.
    A softmax over the labels needs only their logits: what normalises over the vocabulary
    cancels out.
    """
    prefix = shape.prefix_tokens
    suffix = shape.row_tokens - prefix
    tokens = prefix + shape.items * suffix
    pairs = _causal_pairs(prefix) + shape.items * (suffix * prefix + _causal_pairs(suffix))
    layer = tokens * model.layer_operations + pairs * model.pair_operations
    last = (
        tokens * model.kv_operations
        + shape.items * (model.layer_operations - model.kv_operations)
        + shape.items * shape.row_tokens * model.pair_operations
    )
    return (model.layers - 1) * layer + last + shape.items * model.readout_operations(labels)


def operation_ratio(model: ModelShape, shape: Shape, labels: int) -> float:
    """Stock's operations for each operation of the packed forward; at least about 1."""
    return stock_operations(model, shape) / packed_operations(model, shape, labels)


def packed_bytes(model: ModelShape, shape: Shape, labels: int, number_bytes: int) -> int:
    """The least traffic of a packed forward: weights once, K/V written and read once."""
    keys_values = 2 * model.layers * 2 * model.kv_heads * model.head_dim * shape.packed_tokens
    return number_bytes * (model.weights + keys_values + labels * model.hidden)


def stock_bytes(model: ModelShape, shape: Shape, number_bytes: int) -> int:
    """The same of stock's forward over all rows, with the whole output head."""
    tokens = shape.items * shape.row_tokens
    keys_values = 2 * model.layers * 2 * model.kv_heads * model.head_dim * tokens
    return number_bytes * (model.weights + keys_values + model.vocabulary * model.hidden)


def least_ms(operations: int, num_bytes: int, tflops: float, gb_per_s: float) -> float:
    """Milliseconds that a device of these peaks needs at least: arithmetic and traffic overlap."""
    return max(operations / (tflops * 1e9), num_bytes / (gb_per_s * 1e6))


def _causal_pairs(tokens: int) -> int:
    return tokens * (tokens + 1) // 2


def main(
    model: Path,
    shape: Annotated[str, typer.Argument(help="<query>+<item>x<items>")],
    tflops: Annotated[float, typer.Option(help="Peak of the device; H100 SXM bf16: 989.")] = 989.0,
    gb_s: Annotated[float, typer.Option(help="Peak bandwidth in GB/s; H100 SXM: 3350.")] = 3350.0,
    labels: int = len(LABEL_IDS),
    number_bytes: Annotated[int, typer.Option(help="Bytes of a weight: 2 for bf16.")] = 2,
) -> None:
    """Print the least time of one request's forward on a device, stock's and the packed one's, and
    what launching it is expected to take the host."""
    sizes, wanted = ModelShape.from_directory(model), Shape.parse(shape)
    stock = (stock_operations(sizes, wanted), stock_bytes(sizes, wanted, number_bytes))
    packed = (
        packed_operations(sizes, wanted, labels),
        packed_bytes(sizes, wanted, labels, number_bytes),
    )
    for name, (operations, traffic) in (("stock", stock), ("packed", packed)):
        ms = least_ms(operations, traffic, tflops, gb_s)
        print(
            f"{name:6}  {operations / 1e9:10.2f} Gop  {traffic / 1e6:9.1f} MB  "
            f"{ms:8.3f} ms  {wanted.items / ms * 1e3:10.0f} items/s"
        )
    print(f"host, estimated, of one forward ({wanted.packed_tokens} packed tokens):")
    for name, cost, where in host_costs(sizes.layers, wanted):
        print(f"{name:15}  {cost.launches:4} launches  {cost.ms:5.2f} ms{where}")


def host_costs(layers: int, shape: Shape) -> list[tuple[str, host_cost.HostCost, str]]:
    """What is expected of the host for a request's forward, and which way is taken by default."""
    replays = shape.packed_tokens <= GRAPH_TOKENS
    marks = {replays: "  <- by default on CUDA"}
    return [
        ("stock", host_cost.stock(layers), ""),
        ("packed, eager", host_cost.eager(layers), marks.get(False, "")),
        ("packed, graph", host_cost.replayed(), marks.get(True, "")),
        ("prefix cached", host_cost.replayed(cached=True), ""),
    ]


if __name__ == "__main__":
    typer.run(main)
