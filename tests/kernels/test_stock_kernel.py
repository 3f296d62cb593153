"""Soft cap, window and sinks agree with those of SGLang's own Triton prefill kernel.

On a GPU that kernel is one of SGLang's attention backends; its backend on the CPU leaves out the
soft cap and the sinks.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from prefill_kernels.shared_prefix_attention import shared_prefix_attention
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
from torch import Tensor

from sglang_prefill_ext.attention.dense import DenseAttention
from sglang_prefill_ext.attention.inputs import LayerInputs
from tests.kernels.conftest import STOCK_TOLERANCE
from tests.kernels.layouts import Case, make_case
from tests.unit.attention.reference import Variant
from tests.unit.attention.strategies import layout

HELD, FRESH, ROWS = 23, 14, (5, 1, 40)
SINKS = torch.tensor([1.5, -4.0, 3.0, 0.0])
VARIANTS: dict[str, dict[str, Any]] = {
    "soft_cap": {"soft_cap": 3.0},
    "window_within_a_row": {"window": 7},
    "window_into_the_prefix": {"window": 25},
    "window_of_all_but_one": {"window": HELD + FRESH + max(ROWS) - 2},
    "sinks": {"sinks": SINKS},
    "everything": {"soft_cap": 3.0, "window": 20, "sinks": SINKS},
}


def stock(case: Case, variant: Variant) -> Tensor:
    """SGLang's kernel, for each row a prompt whose prefix is cached; `[tokens of rows, H, Dv]`."""
    assert case.cached is not None
    slots = case.cached.page_table.long()
    cached_k, cached_v = case.cached.k[slots], case.cached.v[slots]
    device, rows = case.q.device, len(ROWS)
    q, k, v = (x[FRESH:].contiguous() for x in (case.q, case.k, case.v))
    out = torch.empty_like(q)
    lens = torch.tensor([0, *ROWS], device=device)
    prefix = torch.arange(HELD + FRESH, device=device)
    extend_attention_fwd(
        *(q, k, v, out),
        k_buffer=torch.cat([cached_k, case.k[:FRESH]]),
        v_buffer=torch.cat([cached_v, case.v[:FRESH]]),
        qo_indptr=lens.cumsum(0).int(),
        kv_indptr=torch.arange(rows + 1, device=device, dtype=torch.int32) * len(prefix),
        kv_indices=prefix.repeat(rows),
        custom_mask=None,
        is_causal=True,
        mask_indptr=None,
        max_len_extend=max(ROWS),
        k_scale=1.0,
        v_scale=1.0,
        sm_scale=case.scale,
        logit_cap=variant.soft_cap,
        sliding_window_size=-1 if variant.window is None else variant.window,
        sinks=variant.sinks,
    )
    return out


# It adds the sink to rows of padding, too, whose largest score is -inf.
@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_the_same_as_sglang(device: torch.device, options: dict[str, Any]) -> None:
    forward = layout((HELD, FRESH, *ROWS))
    case = make_case(forward, device, torch.float32)
    variant = Variant(**options)
    if variant.sinks is not None:
        variant = Variant(variant.soft_cap, variant.window, SINKS.to(device))
    wanted = stock(case, variant)
    assert case.cached is not None
    cached = case.cached
    inputs = LayerInputs(case.q, case.k, case.v, case.scale, *variant)
    attention = DenseAttention(forward, device)
    attention.bind((), cached.page_table)
    dense = attention.forward(inputs, (cached.k, cached.v))
    soft_cap, window, sinks, _ = variant
    fused, _ = shared_prefix_attention(
        *case.arguments, cached=cached, soft_cap=soft_cap, window=window, sinks=sinks
    )
    for found in (dense, fused):
        torch.testing.assert_close(
            found[FRESH:], wanted, rtol=STOCK_TOLERANCE, atol=STOCK_TOLERANCE
        )
    plain = stock(case, Variant())
    assert (plain - wanted).abs().max() > 1e-3
