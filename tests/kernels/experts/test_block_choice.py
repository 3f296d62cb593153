"""The choice between two alignments against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prefill_kernels.block_choice import Aligned, choose_block
from prefill_kernels.block_choice.configs import CHUNK
from prefill_kernels.errors import KernelArgumentError


def side(
    device: torch.device, experts: list[int], block: int, fixed: float = 0.0, row: float = 1.0
) -> Aligned:
    """An alignment whose tensor of experts is longer than its blocks, as SGLang's is."""
    ids = torch.tensor([*experts, 0, 0, 0], dtype=torch.int32, device=device)
    padded = torch.tensor([len(experts) * block], dtype=torch.int32, device=device)
    return Aligned(ids, padded, block, fixed, row)


def time_of(side: Aligned) -> float:
    blocks = int(side.padded) // side.block
    rows = side.block * int((side.experts[:blocks] >= 0).sum())
    return side.fixed + side.row * rows


def is_first(first: Aligned, second: Aligned) -> bool:
    """Whether the device takes the first side; it must leave exactly one side unchanged."""
    before = int(first.padded), int(second.padded)
    choose_block(first, second)
    after = int(first.padded), int(second.padded)
    assert after in {(before[0], 0), (0, before[1])}
    return after[0] == before[0]


@settings(max_examples=60, deadline=None)
@given(
    experts=st.lists(st.lists(st.integers(-1, 7), min_size=1, max_size=40), min_size=2, max_size=2),
    blocks=st.tuples(*[st.sampled_from([16, 32, 64, 128])] * 2),
    fixed=st.tuples(*[st.integers(0, 999)] * 2),
    rows=st.tuples(*[st.integers(0, 3)] * 2),
)
def test_the_side_with_the_least_time_is_taken(
    device: torch.device,
    experts: list[list[int]],
    blocks: tuple[int, int],
    fixed: tuple[int, int],
    rows: tuple[int, int],
) -> None:
    # Whole numbers are exact in float32, so that ties are ties.
    first, second = (side(device, *each) for each in zip(experts, blocks, fixed, rows, strict=True))
    expected = time_of(first) <= time_of(second)
    assert is_first(first, second) == expected


def test_more_blocks_than_are_read_at_once(device: torch.device) -> None:
    many = 2 * CHUNK + 5
    for over, expected in ((-1, False), (0, True), (1, True)):
        long = side(device, [1] * many, 16)
        assert is_first(long, side(device, [-1], 128, fixed=16.0 * many + over)) == expected


def test_blocks_of_experts_elsewhere_take_no_time(device: torch.device) -> None:
    assert is_first(side(device, [-1] * 9 + [0], 64), side(device, [0, 1], 64))
    assert not is_first(side(device, [0, 0], 64), side(device, [-1] * 9 + [0], 64))


def test_what_the_kernel_cannot_take_is_refused_before_anything_is_launched(
    device: torch.device,
) -> None:
    good, other = side(device, [0, 1], 64), side(device, [0, 1], 64)
    choose_block(side(device, [0, 1], 64), other)  # what was possible does not let others pass
    elsewhere = good.padded.to("meta"), good.experts.to("meta")
    for broken, name in (
        (good._replace(padded=good.padded.long()), "second.padded"),
        (good._replace(padded=good.padded.repeat(2)), "second.padded"),
        (good._replace(experts=good.experts[::2]), "second.experts"),
        (good._replace(experts=good.experts.double()), "second.experts"),
        (good._replace(block=0), "second.block"),
        (good._replace(padded=elsewhere[0], experts=elsewhere[1]), "second.padded"),
    ):
        with pytest.raises(KernelArgumentError) as raised:
            choose_block(good, broken)
        assert raised.value.name == name
    assert int(good.padded) == 128
