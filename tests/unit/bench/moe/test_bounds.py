"""Bounds on the choice of a block, over synthetic and recorded routing."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.moe.replay import replay
from bench.moe.routing import Forward, drawn, recorded
from bench.moe.shapes import SHAPES, Shape, assumed_times
from sglang_prefill_ext.config import MoePolicy
from sglang_prefill_ext.moe.blocks import padded_rows
from sglang_prefill_ext.moe.policy import choose

QWEN3 = SHAPES[0]
LENGTHS = (256, 512, 1024, 2304, 4096, 8192)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
each_kind = pytest.mark.parametrize("kind", ["uniform", "zipf", "recorded"])


def routings(shape: Shape, kind: str) -> list[list[Forward]]:
    """Forwards that follow each other, of several lengths in all."""
    if kind == "recorded":
        return [recorded(shape.experts, shape.top_k)]
    sizes = (shape.experts, shape.top_k)
    return [[*drawn(kind, *sizes, tokens, 4, seed=1)] for tokens in LENGTHS]


def by_block(shape: Shape, forward: Forward) -> dict[int, NDArray[np.float64]]:
    """Predicted times of each layer, for each single block."""
    times = assumed_times(shape.table)
    entries = shape.table.candidates(forward.tokens)
    return {entry.block: times[entry].seconds(forward.counts, entry.block) for entry in entries}


@each_shape
@each_kind
def test_the_least_time_is_never_above_that_of_a_block_or_of_the_published_rule(
    shape: Shape, kind: str
) -> None:
    times = assumed_times(shape.table)
    for forward in chain.from_iterable(routings(shape, kind)):
        candidates, found = shape.table.candidates(forward.tokens), by_block(shape, forward)
        least, by_ratio = (
            np.array(
                [
                    found[entry.block][layer]
                    for layer, entry in enumerate(choose(policy, forward.counts, candidates, times))
                ]
            )
            for policy in (MoePolicy.LEAST_TIME, MoePolicy.PADDING_RATIO)
        )
        assert (least <= np.min([*found.values()], axis=0)).all()
        assert (least <= by_ratio).all()


@each_shape
@each_kind
def test_what_the_device_takes_loses_to_no_block_for_all(shape: Shape, kind: str) -> None:
    for forwards in routings(shape, kind):
        outcomes = replay(shape, kind, forwards)
        for tokens in {each.tokens for each in forwards}:
            own = [by_block(shape, each) for each in forwards if each.tokens == tokens]
            best = sum(np.min([*found.values()], axis=0).sum() for found in own)
            one_block = min(sum(found[block].sum() for found in own) for block in own[0])
            above = {each.policy: each.regret for each in outcomes if each.tokens == tokens}
            assert above["auto, device"] <= one_block / best - 1 + 1e-9


def skewed(tokens: int) -> NDArray[np.float64]:
    """Rows of 128 experts of which most get less than 64, by Zipf's law."""
    (forward,) = drawn("zipf", 128, 8, tokens, 1, seed=0, skew=1.5)
    rows: NDArray[np.float64] = forward.counts[0]
    return rows


NEARLY_64 = np.array([63] * 123 + [2112] * 4 + [2235])
"""Of four requests of 576 tokens, as well: five experts have nearly all tokens."""


@pytest.mark.parametrize(
    ("rows", "most"),
    [(skewed(576), 0.45), (skewed(1152), 0.7), (NEARLY_64, 0.7), (skewed(2304), 0.8)],
    ids=["576 tokens", "1,152", "2,304, most just under 64", "2,304"],
)
def test_where_most_experts_get_little_much_less_is_padding(
    rows: NDArray[np.float64], most: float
) -> None:
    assert (rows < 64).sum() > 64
    tokens = int(rows.sum()) // 8
    candidates = QWEN3.table.candidates(tokens)
    times = assumed_times(QWEN3.table)
    (chosen,) = choose(MoePolicy.LEAST_TIME, rows[None], candidates, times)
    assert padded_rows(rows, chosen.block) <= most * padded_rows(rows, 128)
