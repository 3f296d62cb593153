"""The least that stock's forward must do beside the packed one, and the time of both (pure).

What is counted stands in `sglang_prefill_ext.sizing.forward`. All host work is left out, so a
measured ratio may exceed the one counted here: the extension also removes work per row that is no
arithmetic at all.

``python -m bench.floor MODEL_DIR 60+2x50 --tflops 989 --gb-s 3350`` prints the time that a device
of such peaks needs at least; a measured time divided by it says how much is left to gain. What the
host is expected to need for the same forward stands below: the longer of the two is what one
forward after the other takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench import host_cost
from bench.workloads import LABEL_IDS
from sglang_prefill_ext.config import GRAPH_TOKENS
from sglang_prefill_ext.sizing.forward import (
    kv_numbers,
    packed_bytes,
    packed_operations,
)
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.shape import Shape, causal_pairs


def stock_operations(model: ModelShape, shape: Shape) -> int:
    """Of a forward over full rows, each with its own copy of the query, without a prefix cache.

    Stock computes every layer for every token, and normalises over the whole vocabulary before it
    picks the labels.
    """
    row = shape.row_tokens * model.body_operations
    row += model.layers * causal_pairs(shape.row_tokens) * model.pair_operations
    return shape.items * (row + model.readout_operations(model.vocabulary))


def operation_ratio(model: ModelShape, shape: Shape, labels: int) -> float:
    """Stock's operations for each operation of the packed forward; at least about 1."""
    return stock_operations(model, shape) / packed_operations(model, shape, labels)


def stock_bytes(model: ModelShape, shape: Shape, number_bytes: int) -> int:
    """The same of stock's forward over all rows, with the whole output head."""
    tokens = shape.items * shape.row_tokens
    numbers = model.read_weights(tokens) + kv_numbers(model, tokens)
    return number_bytes * (numbers + model.vocabulary * model.hidden)


def least_ms(operations: int, num_bytes: int, tflops: float, gb_per_s: float) -> float:
    """Milliseconds that a device of these peaks needs at least: arithmetic and traffic overlap."""
    return max(operations / (tflops * 1e9), num_bytes / (gb_per_s * 1e6))


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
