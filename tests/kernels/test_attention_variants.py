"""Soft cap, sliding window and sinks of the attention kernels, against the definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prefill_kernels.errors import KernelArgumentError
from prefill_kernels.merge_state import merge_state
from prefill_kernels.shared_prefix_attention import KeyParts, shared_prefix_attention
from torch import Tensor

from sglang_prefill_ext.layout.tokens import ForwardLayout
from tests.kernels.devices import on
from tests.kernels.layouts import Case, make_case
from tests.unit.attention.strategies import layout, layouts

# A cached and a fresh prefix, short rows that share a tile and one that spans several; then a
# group without any prefix, and a chunk of a prefix.
FORWARD = layout((21, 13, 2, 3, 2, 19, 1), (0, 0, 5, 4), (40, 6))
SINKS = torch.tensor([1.5, -4.0, 30.0, 0.0])
WINDOWS = [0, 1, 4, 16, 20, 33, 34, 35, 1000]  # within a row, at each border, beyond everything


def run(case: Case, parts: KeyParts = KeyParts.ALL, **changes: Any) -> tuple[Tensor, Tensor]:
    options = {**case.scores, **changes}
    return shared_prefix_attention(*case.arguments, cached=case.cached, parts=parts, **options)


def merged(case: Case) -> tuple[Tensor, Tensor]:
    """Compute as the merging way does: sinks with the rows, then the prefix."""
    own = run(case, KeyParts.OWN)
    return merge_state(*own, *run(case, KeyParts.PREFIX, sinks=None))


@pytest.mark.parametrize("window", WINDOWS)
def test_window(device: torch.device, dtype: torch.dtype, window: int) -> None:
    case = make_case(FORWARD, device, dtype).replace(scores={"window": window})
    case.check(run(case))


def test_a_window_beyond_every_prompt_changes_nothing(device: torch.device) -> None:
    case = make_case(FORWARD, device, torch.float32)
    wide = run(case, window=1000)
    torch.testing.assert_close(wide, run(case), rtol=1e-6, atol=1e-6)
    narrow = run(case, window=35)
    assert (narrow[1] - wide[1]).abs().max() > 0.01


@pytest.mark.parametrize("soft_cap", [0.5, 3.0, 50.0])
def test_soft_cap(device: torch.device, dtype: torch.dtype, soft_cap: float) -> None:
    case = make_case(FORWARD, device, dtype).replace(scores={"soft_cap": soft_cap})
    case.check(run(case), factor=2.0)


def test_a_soft_cap_bounds_large_scores(device: torch.device) -> None:
    case = make_case(FORWARD, device, torch.float32)
    case = case.replace(scale=5.0, scores={"soft_cap": 3.0})
    out, lse = run(case)
    assert lse.abs().max() < 3.0 + torch.tensor(60.0).log()  # at most 54 keys
    case.check((out, lse), factor=5.0)


@pytest.mark.parametrize("sinks_dtype", [torch.float32, torch.bfloat16])
def test_sinks(device: torch.device, dtype: torch.dtype, sinks_dtype: torch.dtype) -> None:
    case = make_case(FORWARD, device, dtype)
    case = case.replace(scores={"sinks": SINKS.to(device, sinks_dtype)})
    case.check(run(case))


def test_a_query_without_keys_has_its_sink(device: torch.device) -> None:
    case = make_case(layout((0, 0, 5, 4)), device, torch.float32)
    sinks = SINKS.to(device)
    out, lse = run(case, KeyParts.PREFIX, sinks=sinks)
    assert (out == 0).all()
    torch.testing.assert_close(lse, sinks.expand_as(lse))


@pytest.mark.parametrize("window", [0, 3, 18, 34, 60])
def test_all_at_once_in_both_ways(device: torch.device, dtype: torch.dtype, window: int) -> None:
    scores = {"soft_cap": 5.0, "window": window, "sinks": SINKS.to(device)}
    case = make_case(FORWARD, device, dtype).replace(scores=scores)
    case.check(run(case), factor=2.0)
    case.check(merged(case), factor=2.0)


# The interpreter takes tenths of a second for each: shapes of forwards, few examples.
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    forward=layouts(max_groups=2),
    data=st.data(),
    block=st.sampled_from([3, 16]),
    window=st.none() | st.integers(0, 120),
    soft_cap=st.sampled_from([0.0, 2.0]),
    has_sinks=st.booleans(),
)
def test_any_forward_any_queries_and_any_variant(
    device: torch.device,
    forward: ForwardLayout,
    data: st.DataObject,
    block: int,
    window: int | None,
    soft_cap: float,
    has_sinks: bool,
) -> None:
    tokens = st.integers(0, forward.num_tokens - 1)
    queries = data.draw(st.none() | st.sets(tokens, max_size=20).map(sorted))
    case = make_case(forward, device, torch.float32, queries, block_tokens=block)
    sinks = SINKS.to(device) if has_sinks else None
    case = case.replace(scores={"soft_cap": soft_cap, "window": window, "sinks": sinks})
    case.check(run(case), factor=2.0)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("soft_cap is -1.0: pass a positive bound", {"soft_cap": -1.0}),
        ("window is -1: pass how many", {"window": -1}),
        ("sinks is of shape .*: it must be .4", {"sinks": torch.zeros(2)}),
        ("sinks is torch.int64: use", {"sinks": torch.zeros(4, dtype=torch.int64)}),
        ("sinks is strided by 2", {"sinks": torch.zeros(8)[::2]}),
    ],
)
def test_wrong_options_are_refused(
    device: torch.device, message: str, options: dict[str, Any]
) -> None:
    case = make_case(FORWARD, device, torch.float32)
    moved = {k: on(device, v) if isinstance(v, Tensor) else v for k, v in options.items()}
    with pytest.raises(KernelArgumentError, match=message):
        run(case, **moved)
