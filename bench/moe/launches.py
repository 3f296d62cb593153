"""Count what the two ways of choosing blocks launch and compute: ``python -m bench.moe.launches``.

It prints the tables of docs/moe.md. No model runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.moe.replay import replay
from bench.moe.routing import drawn
from bench.moe.shapes import SHAPES, assumed_times
from sglang_prefill_ext.config import MoePolicy
from sglang_prefill_ext.forward.expert_blocks import LOOK_EVERY
from sglang_prefill_ext.forward.expert_counts import LAUNCHES_A_LAYER
from sglang_prefill_ext.moe.blocks import Entry, padded_rows
from sglang_prefill_ext.moe.policy import Pair, choose_pairs


class Launched(NamedTuple):
    """Launches of one layer of experts.

    Attributes:
        alignments: launches that align rows to blocks.
        choices: launches of the kernel that chooses a block.
        products: launches of SGLang's fused kernel.
    """

    alignments: int
    choices: int
    products: int


HISTORY, DEVICE = Launched(1, 0, 2), Launched(2, 1, 4)
"""Launches with one chosen entry, and with two entries between which the device chooses. A test
counts them."""

QWEN3 = SHAPES[0]
TOKENS = (256, 1152, 2304, 4608)
FORWARDS = 12
TILE_WIDTH = {16: 128, 32: 256, 64: 128, 128: 256}
"""Block of rows -> ``BLOCK_SIZE_N`` in the table of SGLang 0.5.23 for this shape on an H100."""


def main() -> None:
    print(launch_table(), work_table(), sep="\n", end="")


def launch_table() -> str:
    """Return a table of the launches of one layer in one forward."""
    counting = f"{LAUNCHES_A_LAYER} in one forward of {LOOK_EVERY}"
    lines = (
        ("alignments of rows to blocks (two kernels each)", "alignments"),
        ("kernel that chooses", "choices"),
        ("SGLang's fused kernel", "products"),
    )
    rows = [(what, getattr(HISTORY, key), getattr(DEVICE, key)) for what, key in lines]
    rows += [("kernels that count the routing", counting, counting)]
    rows += [("copies for which the host waits", 0, 0)]
    return _table(("launches of a layer", "`history`", "`device`"), rows)


def work_table() -> str:
    """Return a table of the work of one layer of Qwen3-30B-A3B: means over forwards whose routing
    is drawn by Zipf's law."""
    rows = ("rows, `stock`", "`history`", "`device`")
    programs = ("programs that compute", "that return, `history`", "`device`")
    return _table(("tokens", *rows, *programs), [_work(tokens) for tokens in TOKENS])


def _work(tokens: int) -> tuple[str, ...]:
    """Rows computed over real rows, and programs of both products with an entry of `history`."""
    forwards = [*drawn("zipf", QWEN3.experts, QWEN3.top_k, tokens, FORWARDS, seed=0)]
    rows = {each.policy: each.padded for each in replay(QWEN3, "zipf", forwards)}
    (pair,) = choose_pairs(
        *(MoePolicy.LEAST_TIME, forwards[0].counts[:1]),
        *(QWEN3.table.candidates(tokens), assumed_times(QWEN3.table)),
    )
    assert isinstance(pair, Pair)
    counts = [layer for forward in forwards for layer in forward.counts]
    taken = [pair.taken(layer) for layer in counts]
    total = tokens * QWEN3.top_k
    computing = np.mean([_computing(*each) for each in zip(taken, counts, strict=True)])
    alone = np.mean([_launched(entry, total) for entry in taken])
    both = _launched(pair.first, total) + _launched(pair.second, total)
    shares = (rows[way] for way in ("stock", "auto", "auto, device"))
    programs = (computing, alone - computing, both - computing)
    return f"{tokens:,}", *(f"{n:.2f}" for n in shares), *(f"{n:,.0f}" for n in programs)


def _computing(entry: Entry, rows: NDArray[Any]) -> float:
    return _columns(entry) * float(padded_rows(rows, entry.block)) / entry.block


def _launched(entry: Entry, total: int) -> int:
    """Programs that SGLang launches: those for as many blocks as the worst routing needs."""
    worst = total + (QWEN3.experts + 1) * (entry.block - 1)
    return _columns(entry) * math.ceil(worst / entry.block)


def _columns(entry: Entry) -> int:
    """Programs for each block of rows, of the up- and gate-, and of the down-projection."""
    tile = TILE_WIDTH[entry.block]
    return math.ceil(2 * QWEN3.width / tile) + math.ceil(QWEN3.hidden / tile)


def _table(head: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> str:
    lines = [head, ("---", *("--:",) * (len(head) - 1)), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


if __name__ == "__main__":
    main()
