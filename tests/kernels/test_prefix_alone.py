"""Attention to the prefix alone, and the merge of both halves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from prefill_kernels.errors import KernelArgumentError
from prefill_kernels.merge_state import merge_state
from prefill_kernels.shared_prefix_attention import (
    KeyParts,
    block_tokens,
    configs,
    shared_prefix_attention,
)
from torch import Tensor

from sglang_prefill_ext.layout.tokens import ForwardLayout
from tests.kernels.layouts import Case, make_case
from tests.unit.attention.strategies import layout, layouts

FORWARD = layout((21, 13, 2, 3, 2, 19, 1), (0, 0, 5, 4), (40, 6), (0, 9, 30))


def run(case: Case) -> tuple[Tensor, Tensor]:
    return shared_prefix_attention(*case.arguments, cached=case.cached, parts=KeyParts.PREFIX)


@pytest.mark.parametrize("block_tokens", [5, 16])
def test_the_prefix_alone(device: torch.device, dtype: torch.dtype, block_tokens: int) -> None:
    case = make_case(FORWARD, device, dtype, block_tokens=block_tokens)
    out, lse = run(case)
    case.check((out, lse), KeyParts.PREFIX)
    # The group without a prefix, and the fresh prefix that nothing precedes.
    without = [*range(40, 49), *range(55, 64)]
    assert (out[without] == 0).all()
    assert (lse == -torch.inf).all(1).nonzero()[:, 0].tolist() == without


def test_a_long_prefix_of_many_rows(device: torch.device) -> None:
    sizes = {"head_dim": 128, "value_dim": 128, "block_tokens": 64}
    case = make_case(layout((0, 300, *[2] * 50)), device, torch.float16, **sizes)
    case.check(run(case), KeyParts.PREFIX)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(forward=layouts(max_groups=2))
def test_the_merged_halves_are_the_whole(device: torch.device, forward: ForwardLayout) -> None:
    case = make_case(forward, device, torch.float32, block_tokens=16)
    own = shared_prefix_attention(*case.arguments, parts=KeyParts.OWN)
    case.check(merge_state(*run(case), *own))


def test_wrong_arguments_are_refused(device: torch.device) -> None:
    case = make_case(FORWARD, device, torch.float32)
    with pytest.raises(KernelArgumentError, match=r"^scale is -1"):
        run(case.replace(scale=-1.0))


def test_tiles_are_larger_than_those_of_the_whole(device: torch.device) -> None:
    for head_dim in (64, 80, 128, 256, 512):
        sizes = (2, head_dim, torch.float16, device)
        assert block_tokens(*sizes, KeyParts.PREFIX) >= block_tokens(*sizes)
    with pytest.raises(KernelArgumentError, match=r"^head_dim is 513: head sizes go up to 512"):
        block_tokens(2, 513, torch.float16, device, KeyParts.PREFIX)


def test_other_architectures_take_the_smaller_tiles() -> None:
    hopper, ampere = (
        configs.tile_config(128, 2, architecture, prefix_alone=True) for architecture in (9, 8)
    )
    assert hopper is not None
    assert ampere is not None
    assert (hopper.query_rows, ampere.query_rows) == (128, 64)
    assert configs.tile_config(513, 2, 9, prefix_alone=True) is None
