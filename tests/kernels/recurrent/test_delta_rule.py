"""SGLang's kernels of the gated delta rule, as packed forwards call them, against torch."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from sglang.srt.layers.attention.linear.kernels.gdn_triton import TritonGDNKernel

from sglang_prefill_ext.border.model.recurrent.delta_rule import carry, kernel_inputs
from sglang_prefill_ext.recurrent.inputs import delta_rule_inputs
from sglang_prefill_ext.recurrent.layers import RuleWay, by_torch
from tests.kernels.recurrent.interpreted import delta_rule_interpreted  # noqa: F401
from tests.kernels.recurrent.parts import (
    assert_agrees_with_torch,
    assert_called_as_by_sglang,
    assert_joined_as_apart,
    part_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")

HEADS, VALUE_HEADS, DIM = 2, 4, 64
LENS = [3, 70, 1]


@pytest.mark.parametrize(("keep", "slots"), [(True, [2, 0, 1]), (False, [1, 1, 0])])
def test_both_ways_agree(device: torch.device, keep: bool, slots: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    draw = partial(torch.randn, generator=generator)
    tokens = sum(LENS)
    q, k = draw(2, tokens, HEADS, DIM).to(device, torch.float16)
    v = draw(tokens, VALUE_HEADS, DIM).to(device, torch.float16)
    a, b = draw(2, tokens, VALUE_HEADS).to(device, torch.float16)
    weights = draw(2, VALUE_HEADS).to(device)
    way = RuleWay(partial(kernel_inputs, *weights), carry)
    by_torch_alone = by_torch(partial(delta_rule_inputs, *weights))
    states = draw(3, VALUE_HEADS, DIM, DIM).to(device)
    part = part_of(LENS, slots, device, keep=keep)
    assert_agrees_with_torch(way, by_torch_alone, [q, k, v, a, b], states, part)


def test_the_kernels_are_called_as_by_sglang(device: torch.device) -> None:
    """Apart from the lists of chunks, which SGLang makes itself."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(2))
    q, k = draw(2, sum(LENS), HEADS, DIM).to(device, torch.float16)
    v = draw(sum(LENS), VALUE_HEADS, DIM).to(device, torch.float16)
    a, b = draw(2, sum(LENS), VALUE_HEADS).to(device, torch.float16)
    inputs = kernel_inputs(*draw(2, VALUE_HEADS).to(device), q, k, v, a, b)
    states = draw(3, VALUE_HEADS, DIM, DIM).to(device)
    part = part_of(LENS, [0, 2, 1], device, keep=True)
    assert_called_as_by_sglang(carry, TritonGDNKernel(), inputs, (q, k, v), states, part)


@pytest.mark.parametrize(
    ("dtype", "prefixes", "rows", "slots"),
    [
        (torch.float16, [3, 70], [1, 66, 5], [2, 0, 1]),
        (torch.float16, [], [65, 4], [0, 0]),
        (torch.float32, [7], [2, 3], [1, 1]),
    ],
)
def test_rows_start_behind_prefixes_of_the_same_part(
    device: torch.device, dtype: torch.dtype, prefixes: list[int], rows: list[int], slots: list[int]
) -> None:
    """As by a part of prefixes and one of rows; what a part has room for changes nothing."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(3))
    tokens = sum(prefixes) + sum(rows)
    q, k = draw(2, tokens, 1, DIM).to(device, dtype)
    v = draw(tokens, 2, DIM).to(device, dtype)
    a, b = draw(2, tokens, 2).to(device, dtype)
    way = RuleWay(partial(kernel_inputs, *draw(2, 2).to(device)), carry)
    assert_joined_as_apart(way, way.prepare(q, k, v, a, b), prefixes, rows, slots)
