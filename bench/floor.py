"""Count the least arithmetic and traffic of a stock and a packed forward, and their times (pure).

`sglang_prefill_ext.sizing.work` says what is counted. Host work is left out. So a measured ratio
may exceed the one counted here, because the extension also saves host work for each row.

``python -m bench.floor MODEL_DIR 60+2x50 --tflops 989 --gb-s 3350`` prints the least time on a
device with these peaks. A measured time divided by it shows how much can still be gained. Below,
it prints the host time that is expected for the same forward. When forwards follow each other, each
takes the longer of the two times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench import host_cost
from bench.workloads import LABEL_IDS
from sglang_prefill_ext.sizing.forward import graph_tokens
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.shape import Shape
from sglang_prefill_ext.sizing.work import (
    BFLOAT16_BYTES,
    kv_numbers,
    packed_bytes,
    packed_operations,
)


def stock_operations(model: ModelShape, shape: Shape) -> int:
    """Operations of stock's forward over full rows, each with its own query, no prefix cache.

    Stock computes every layer for every token, and normalises over the whole vocabulary before it
    picks the labels.
    """
    alone = Shape(shape.row_tokens, 0, 1)
    row = sum(count * each.operations(alone) for each, count in model.counts.items())
    return shape.items * (row + model.readout_operations(model.vocabulary))


def operation_ratio(model: ModelShape, shape: Shape, labels: int) -> float:
    """Stock's operations for each operation of the packed forward; at least about 1."""
    return stock_operations(model, shape) / packed_operations(model, shape, labels)


def stock_bytes(model: ModelShape, shape: Shape, weight_bytes: float) -> float:
    """Bytes that stock's forward over full rows must move, with those of the whole output head."""
    tokens = shape.items * shape.row_tokens
    weights = model.read_weights(tokens) + model.vocabulary * model.hidden
    return weight_bytes * weights + BFLOAT16_BYTES * kv_numbers(model, tokens)


def least_ms(operations: int, num_bytes: float, tflops: float, gb_per_s: float) -> float:
    """Least milliseconds on a device with these peaks, if arithmetic and traffic overlap fully."""
    return max(operations / (tflops * 1e9), num_bytes / (gb_per_s * 1e6))


def main(
    model: Path,
    shape: Annotated[str, typer.Argument(help="<query>+<item>x<items>")],
    tflops: Annotated[float, typer.Option(help="Peak in TFLOP/s; H100 SXM bf16: 989.")] = 989.0,
    gb_s: Annotated[float, typer.Option(help="Peak bandwidth in GB/s; H100 SXM: 3350.")] = 3350.0,
    labels: int = len(LABEL_IDS),
    weight_bytes: Annotated[float, typer.Option(help="Bytes per weight; bf16: 2.")] = 2,
) -> None:
    """Print the least device time of one request's forward, stock and packed, and the host time
    that launching it is expected to take."""
    sizes, wanted = ModelShape.from_directory(model), Shape.parse(shape)
    stock = (stock_operations(sizes, wanted), stock_bytes(sizes, wanted, weight_bytes))
    packed = (
        packed_operations(sizes, wanted, labels),
        packed_bytes(sizes, wanted, labels, weight_bytes=weight_bytes),
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
    """Expected host work for one request's forward: name, cost, and a mark of the default way."""
    replays = shape.packed_tokens <= graph_tokens(ranks=1)
    marks = {replays: "  <- by default on CUDA"}
    return [
        ("stock", host_cost.stock(layers), ""),
        ("packed, eager", host_cost.eager(layers), marks.get(False, "")),
        ("packed, graph", host_cost.replayed(), marks.get(True, "")),
        ("prefix cached", host_cost.replayed(cached=True), ""),
    ]


if __name__ == "__main__":
    typer.run(main)
