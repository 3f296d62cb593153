"""Choose, in every forward, the block of rows for each layer of a group of like MoE layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from prefill_kernels.block_choice import Aligned, choose_block
from torch import Tensor

from sglang_prefill_ext.config import MoePolicy, MoeSource
from sglang_prefill_ext.forward.expert_counts import ExpertCounts
from sglang_prefill_ext.moe.blocks import BlockTable, Entry
from sglang_prefill_ext.moe.policy import Choice, Pair, Times, choose, choose_pairs, in_effect
from sglang_prefill_ext.moe.routing import LayerBalance, RoutingAverage, balance_of

LEAST_TOKENS = 64
"""Forwards with fewer tokens keep SGLang's choice: they are decode steps, with small blocks."""

LOOK_EVERY = 1024
"""The routing of one in so many forwards is counted. Such a forward launches a few more kernels a
layer, and none of its kernels is replayed. On an H100, with 12 layers of Qwen3-30B-A3B, it took
39 ms; an eager one took 28. So it is less than one in 100."""


class ExpertBlocks:
    """Chooses table entries by the routing of earlier forwards, so the host never waits for counts.

    With `MoeSource.DEVICE` it chooses two entries per layer, between which the device chooses by
    the routing of the forward itself.

    Args:
        layers, experts: number of layers, and of experts per layer on this device.
        table: SGLang's table of tuned entries for the shape of these layers.
        times: measured times of its entries; may be empty.
        alone: entries that cannot be launched as one of two.
        share: the share of a forward's rows that experts on this device get, if all are used
            evenly.
    """

    def __init__(
        self,
        layers: int,
        experts: int,
        table: BlockTable,
        policy: MoePolicy,
        times: Times,
        counts: ExpertCounts,
        *,
        source: MoeSource = MoeSource.HISTORY,
        alone: Collection[Entry] = (),
        share: float = 1.0,
    ) -> None:
        self.table, self.policy, self.times = table, policy, times
        self.source, self._alone, self._share = source, alone, share
        self.balance = [LayerBalance()] * layers
        self.learning = False
        self._average = RoutingAverage(layers, experts)
        self._counts = counts
        self._counting = self._on_the_way = self._begun = False
        self._forwards = 0
        self._last_layer = layers
        self._total = -1
        self._chosen: Sequence[Choice] = ()
        self._looked_at: tuple[Sequence[Choice], Entry] = ((), table.entries[0])

    def entry(self, layer: int, topk_ids: Tensor, *, capturing: bool) -> Choice | None:
        """Return the entry, or the pair, for one layer of a forward; None: SGLang's own choice.

        Args:
            layer: number of the layer; calls of a forward come in ascending order.
            topk_ids: ``[tokens, top_k]``; the host does not read the values.
            capturing: the call is captured into a CUDA graph, so the choice holds for every replay;
                of a pair, each replay chooses anew. Nothing is counted, since the graph would then
                count in every replay.
        """
        if not capturing and layer <= self._last_layer:
            if not self._begun:
                self.next_forward()
            self._begun = False
        if topk_ids.numel() != self._total:
            self._decide(len(topk_ids), topk_ids.numel())
        if not capturing:
            self._last_layer = layer
            if self._counting:
                self._counts.count(layer, topk_ids)
        chosen = self._chosen[layer]
        return None if chosen is self._stock else chosen

    def _decide(self, tokens: int, total: int) -> None:
        candidates = self.table.candidates(tokens)
        rows = self._average.rows(total * self._share)
        self._stock, self._total = candidates[0], total
        known = (self.policy, rows, candidates, self.times)
        if self.source is MoeSource.DEVICE:
            self._chosen = choose_pairs(*known, self._alone)
        else:
            self._chosen = choose(*known)

    def _balance(self, rows: NDArray[Any]) -> list[LayerBalance]:
        chosen, stock = self._looked_at
        blocks = [
            (choice.taken(own) if isinstance(choice, Pair) else choice).block
            for choice, own in zip(chosen, rows, strict=True)
        ]
        return balance_of(rows, blocks, stock.block)

    def next_forward(self) -> bool:
        """Return whether the forward that begins is for counting its routing; it is not replayed.

        That depends on the forwards before alone, so all ranks agree. Nothing is counted if the
        last counts are still on their way. `entry` calls this for forwards for which nobody else
        does.
        """
        self._begun = True
        if self._counting:
            self._counts.send()
            self._looked_at = self._chosen, self._stock
            self._counting, self._on_the_way = False, True
        elif self._on_the_way and (rows := self._counts.arrived()) is not None:
            self._average.add(rows)
            self.balance = self._balance(rows)
            self._on_the_way, self._total = False, -1
        is_due = self.learning and self._forwards % LOOK_EVERY == 0
        self._forwards += self.learning
        if is_due and not self._on_the_way:
            self._counts.begin()
            self._counting = True
        return is_due


def leave_one(pair: Pair, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> None:
    """Let the device choose one entry of a pair: it sets the row count of the other one to 0.

    One launch; nothing is copied to the host.

    Args:
        first, second: for each entry, the expert of each of its blocks, int32 ``[blocks]`` or
            longer, and the row count of all blocks, int32 ``[1]``.
    """
    choose_block(
        Aligned(*first, pair.first.block, *pair.first_time),
        Aligned(*second, pair.second.block, *pair.second_time),
    )


@dataclass(slots=True)
class ExpertUse:
    """How the blocks for the experts of one scheduler's model are chosen.

    Attributes:
        reason: why SGLang's own choice stays; empty if blocks are chosen.
        groups: one per group of like layers; empty if nothing is chosen.
    """

    reason: str = ""
    groups: list[ExpertBlocks] = field(default_factory=list)

    def learn(self) -> None:
        """Count routing from now on: forwards before were not for requests, but for measuring."""
        for group in self.groups:
            group.learning = True

    def next_forward(self, tokens: int) -> bool:
        """Return whether the forward that begins is for counting its routing, in any group."""
        if tokens < LEAST_TOKENS:
            return False
        counted = [group.next_forward() for group in self.groups]
        return any(counted)

    @property
    def balance(self) -> list[LayerBalance]:
        """How full the blocks of each layer were, group by group, in the model's order."""
        return [layer for group in self.groups for layer in group.balance]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        policies = sorted({in_effect(group.policy, group.times) for group in self.groups})
        sources = sorted({group.source for group in self.groups})
        return {
            "policy": ", ".join(policies) or MoePolicy.STOCK,
            "source": ", ".join(sources),
            "reason": self.reason,
            "layers": [layer._asdict() for layer in self.balance],
        }
