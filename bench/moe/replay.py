"""Replay forwards through the chooser, and compare policies with the best block of each forward."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.moe.routing import Forward
from bench.moe.shapes import Shape, assumed_times
from sglang_prefill_ext.config import MoePolicy, MoeSource
from sglang_prefill_ext.forward.expert_blocks import ExpertBlocks
from sglang_prefill_ext.forward.expert_counts import ExpertCounts
from sglang_prefill_ext.moe.blocks import padded_rows
from sglang_prefill_ext.moe.policy import Pair

WAYS = {
    "stock": (MoePolicy.STOCK, MoeSource.HISTORY),
    "padding-ratio": (MoePolicy.PADDING_RATIO, MoeSource.HISTORY),
    "auto": (MoePolicy.AUTO, MoeSource.HISTORY),
    "auto, device": (MoePolicy.AUTO, MoeSource.DEVICE),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy on forwards of one length.

    Attributes:
        policy: one of `WAYS`.
        padded: rows computed over real rows.
        operations: of all forwards.
        regret: predicted time over that with the best block for each layer and forward, minus 1.
    """

    shape: str
    routing: str
    tokens: int
    policy: str
    padded: float
    operations: float
    regret: float


class ReplayedCounts(ExpertCounts):
    """Delivers the counts of a forward as soon as it has ended."""

    def __init__(self) -> None:
        self.of_forward: NDArray[np.int64] = np.zeros((1, 1), np.int64)
        self._sent = self.of_forward

    def begin(self) -> None:
        pass

    def count(self, layer: int, topk_ids: Tensor) -> None:
        self._sent = self.of_forward

    def send(self) -> None:
        pass

    def arrived(self) -> NDArray[np.int32] | None:
        counts: NDArray[np.int32] = self._sent.astype(np.int32)
        return counts


def chooser(shape: Shape, layers: int, way: str, counts: ReplayedCounts) -> ExpertBlocks:
    """Return the chooser that a server uses, with assumed times."""
    policy, source = WAYS[way]
    times = assumed_times(shape.table)
    blocks = ExpertBlocks(layers, shape.experts, shape.table, policy, times, counts, source=source)
    blocks.learning = True
    return blocks


def replay(shape: Shape, routing: str, forwards: Sequence[Forward]) -> list[Outcome]:
    """Compare all policies for each length of forwards.

    Nothing is known before the first forward. A policy chooses by earlier forwards only. The cost
    of its choice depends on the counts of the forward itself.
    """
    spent: dict[tuple[int, str], NDArray[np.float64]] = {}
    for way in WAYS:
        counts = ReplayedCounts()
        blocks = chooser(shape, len(forwards[0].counts), way, counts)
        for forward in forwards:
            counts.of_forward = forward.counts
            spent.setdefault((forward.tokens, way), np.zeros(4))
            spent[forward.tokens, way] += _spent(shape, blocks, forward)
    return [
        Outcome(
            *(shape.name, routing, tokens, policy, padded / real),
            operations=shape.operations(padded),
            regret=taken / best - 1,
        )
        for (tokens, policy), (real, padded, taken, best) in spent.items()
    ]


def _spent(shape: Shape, blocks: ExpertBlocks, forward: Forward) -> NDArray[np.float64]:
    """Real rows, padded rows, time, and time of the best block, over all layers."""
    candidates = shape.table.candidates(forward.tokens)
    ids = torch.empty((forward.tokens, forward.top_k), dtype=torch.int32, device="meta")
    total = np.zeros(4)
    for layer, rows in enumerate(forward.counts):
        chosen = blocks.entry(layer, ids, capturing=False) or candidates[0]
        if isinstance(chosen, Pair):
            chosen = chosen.taken(rows)
        times = assumed_times(shape.table)
        best = min(float(times[entry].seconds(rows, entry.block)) for entry in candidates)
        padded = float(padded_rows(rows, chosen.block))
        total += (rows.sum(), padded, float(times[chosen].seconds(rows, chosen.block)), best)
    return total


def decision_us(experts: int = 128, layers: int = 48, forwards: int = 200) -> float:
    """Microseconds per layer that choosing takes the host if all forwards have different lengths:
    the best of all forwards, in CPU time of this thread."""
    shape = Shape("", experts, 8, 1, 1, {64: 16, 256: 32, 512: 64, 1024: 128})
    blocks = chooser(shape, layers, "auto", ReplayedCounts())
    blocks.learning = False  # the device does the counting
    taken = []
    for number in range(forwards):
        ids = torch.empty((1000 + number, 8), dtype=torch.int32, device="meta")
        begun_s = time.thread_time()
        for layer in range(layers):
            blocks.entry(layer, ids, capturing=False)
        taken.append((time.thread_time() - begun_s) / layers * 1e6)
    return min(taken)
