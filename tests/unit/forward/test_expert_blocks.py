from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.config import MoePolicy, MoeSource
from sglang_prefill_ext.forward.expert_blocks import (
    LEAST_TOKENS,
    LOOK_EVERY,
    ExpertBlocks,
    ExpertUse,
)
from sglang_prefill_ext.forward.expert_counts import ExpertCounts
from sglang_prefill_ext.moe.blocks import BlockTable, Entry
from sglang_prefill_ext.moe.policy import BlockTime, Choice, Pair

LARGE, SMALL = Entry(2048, 128), Entry(512, 64)
TABLE = BlockTable({512: 64, 2048: 128})
TOKENS, EXPERTS = 2000, 16


class LateCounts(ExpertCounts):
    """Counts that arrive when the test says so."""

    here = False
    looks = 0

    def begin(self) -> None:
        self.looks += 1
        super().begin()

    def arrived(self) -> NDArray[np.int32] | None:
        return super().arrived() if self.here else None


def blocks_of(
    layers: int,
    policy: MoePolicy = MoePolicy.PADDING_RATIO,
    times: Any = None,
    *,
    here: bool = False,
    learns: bool = True,
    **more: Any,
) -> tuple[ExpertBlocks, LateCounts]:
    """`here`: counts arrive at once. `learns`: routing is counted."""
    counts = LateCounts(layers, EXPERTS, torch.device("cpu"))
    counts.here = here
    blocks = ExpertBlocks(layers, EXPERTS, TABLE, policy, times or {}, counts, **more)
    if learns:
        ExpertUse(groups=[blocks]).learn()
    return blocks, counts


def ids_of(experts: Iterable[int]) -> Tensor:
    """Expert ids of tokens with one expert each, taken from the given ones in turn."""
    named = list(experts)
    return torch.tensor([named[at % len(named)] for at in range(TOKENS)])[:, None]


def forward(blocks: ExpertBlocks, *routing: Tensor) -> list[Choice | None]:
    return [blocks.entry(layer, ids, capturing=False) for layer, ids in enumerate(routing)]


EVEN, ONE = ids_of(range(EXPERTS)), ids_of([3])
"""125 rows for each expert: blocks of 64 are no fuller. And all rows for one."""


def test_each_layer_is_chosen_by_how_it_routed_before() -> None:
    some = ids_of([0] * 24 + [*range(1, EXPERTS)])  # 51 rows for all experts but one
    blocks, _ = blocks_of(3, here=True)
    routing = (EVEN, ONE, some)
    forward(blocks, *routing)
    forward(blocks, *routing)  # the transfer of the counts begins
    assert forward(blocks, *routing) == [None, None, SMALL]


def test_nobody_waits_for_counts_that_are_on_the_way() -> None:
    blocks, counts = blocks_of(1)
    before = forward(blocks, EVEN)
    assert before == [SMALL]  # nothing is known, so some experts are assumed to get few rows
    for _ in range(3 * LOOK_EVERY):
        assert forward(blocks, EVEN) == before
    assert counts.looks == 1
    counts.here = True
    assert forward(blocks, EVEN) == [None]


def test_only_some_forwards_are_looked_at() -> None:
    blocks, counts = blocks_of(2, here=True)
    for _ in range(3 * LOOK_EVERY):
        forward(blocks, EVEN, EVEN)
    assert counts.looks == pytest.approx(3, abs=1)


def test_counted_forwards_are_announced_so_that_they_are_not_replayed() -> None:
    blocks, counts = blocks_of(1, here=True)
    announced = []
    for number in range(2 * LOOK_EVERY + 4):
        counted = blocks.next_forward()
        announced += [number] * counted
        if counted:
            forward(blocks, EVEN)
    first, second, third = announced
    assert (first, second - first, third - second) == (0, LOOK_EVERY, LOOK_EVERY)
    assert counts.looks == len(announced)
    assert blocks.balance[0].padded > 0


def test_a_forward_that_keeps_sglangs_choice_is_not_announced() -> None:
    blocks, _ = blocks_of(1)
    use = ExpertUse(groups=[blocks])
    assert not use.next_forward(LEAST_TOKENS - 1)
    assert use.next_forward(LEAST_TOKENS)


def test_before_anybody_has_asked_nothing_is_learnt() -> None:
    blocks, counts = blocks_of(1, here=True, learns=False)
    for _ in range(LOOK_EVERY):
        assert forward(blocks, ONE) == [SMALL]
    assert counts.looks == 0


def test_a_graph_is_captured_with_what_is_known_and_counts_nothing() -> None:
    blocks, counts = blocks_of(1, here=True)
    for _ in range(3):
        forward(blocks, EVEN)
    looks = counts.looks
    for _ in range(3 * LOOK_EVERY):
        assert blocks.entry(0, ONE, capturing=True) is None
    assert counts.looks == looks


def test_the_choice_is_for_the_tokens_of_this_forward() -> None:
    blocks, _ = blocks_of(1, here=True)
    for _ in range(3):
        forward(blocks, EVEN)
    few, many = EVEN[:1300], EVEN.repeat(10, 1)
    assert forward(blocks, few) == [SMALL]  # 81 rows each
    assert forward(blocks, many) == [None]  # 1250 rows each


def test_with_times_the_fastest_is_chosen() -> None:
    times = {LARGE: BlockTime(0, 1.0), SMALL: BlockTime(0, 1.5)}
    blocks, _ = blocks_of(1, MoePolicy.AUTO, times)
    assert forward(blocks, EVEN) == [None]
    times = {LARGE: BlockTime(0, 1.0), SMALL: BlockTime(0, 0.9)}
    blocks, _ = blocks_of(1, MoePolicy.AUTO, times)
    assert forward(blocks, EVEN) == [SMALL]


def test_the_balance_is_that_of_the_forward_that_was_looked_at() -> None:
    blocks, _ = blocks_of(2, here=True)
    for _ in range(3):
        forward(blocks, EVEN, ONE)
    even, one = blocks.balance
    assert even.busiest_share == pytest.approx(1 / EXPERTS)
    assert even.padded == even.stock_padded == 16 * 128 / TOKENS
    assert one.busiest_share == 1
    assert (one.padded, one.stock_padded) == (2048 / TOKENS, 2048 / TOKENS)


def test_the_device_chooses_between_two_in_graphs_too() -> None:
    times = {LARGE: BlockTime(0, 1.0), SMALL: BlockTime(0, 1.1)}
    blocks, _ = blocks_of(1, MoePolicy.AUTO, times, source=MoeSource.DEVICE, here=True)
    (chosen,) = forward(blocks, EVEN)
    assert isinstance(chosen, Pair)
    assert {chosen.first, chosen.second} == {LARGE, SMALL}
    assert blocks.entry(0, EVEN, capturing=True) == chosen


def test_the_balance_is_that_of_what_the_device_took() -> None:
    blocks, _ = blocks_of(2, source=MoeSource.DEVICE, here=True)
    some = ids_of([0] * 24 + [*range(1, EXPERTS)])
    for _ in range(3):
        chosen = forward(blocks, EVEN, some)
    assert all(isinstance(each, Pair) for each in chosen)
    even, uneven = blocks.balance
    assert even.padded == even.stock_padded == 16 * 128 / TOKENS
    assert uneven.padded == (1280 + 15 * 64) / TOKENS < uneven.stock_padded


def test_of_tokens_that_mostly_go_elsewhere_few_rows_are_expected() -> None:
    # 125 rows an expert if all are here, 63 if half of them are.
    for share, expected in ((1.0, None), (0.5, SMALL)):
        blocks, _ = blocks_of(1, share=share, here=True)
        for _ in range(2):
            forward(blocks, EVEN)
        assert forward(blocks, EVEN) == [expected]


def test_an_entry_that_must_be_alone_is_chosen_by_history() -> None:
    blocks, _ = blocks_of(1, source=MoeSource.DEVICE, alone={LARGE})
    assert forward(blocks, EVEN) == [SMALL]
