"""SGLang's kernels of the gated delta rule, as packed forwards call them, against torch."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
import triton.language as tl
from sglang.kernels.ops.attention.fla import chunk_delta_h, chunk_fwd, chunk_o, op, utils
from sglang.srt.layers.attention.linear.kernels.gdn_triton import TritonGDNKernel

from sglang_prefill_ext.border.model import delta_rule as border
from sglang_prefill_ext.recurrent.delta_rule import RuleInputs, gates
from sglang_prefill_ext.recurrent.layers import Stretch, rule_by_torch

pytestmark = pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")

HEADS, VALUE_HEADS, DIM = 2, 4, 64
LENS = [3, 70, 1]


def stretch(slots: list[int], device: torch.device) -> Stretch:
    bounds = torch.tensor([0, *LENS]).cumsum(0).to(device, torch.int32)
    places = torch.tensor(slots, dtype=torch.int32, device=device)
    return Stretch(slice(0, sum(LENS)), LENS, bounds, places)


@pytest.fixture(autouse=True)
def _as_interpreted(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter run SGLang's kernels.

    A CPU has no current device, and the interpreter neither chooses among configurations nor
    replaces functions of Triton that have another name.
    """
    if device.type == "cuda":
        return
    monkeypatch.setattr(utils, "custom_device_ctx", lambda _index: nullcontext())
    tuner = chunk_fwd.chunk_gated_delta_rule_fwd_kkt_solve_kernel.fn
    monkeypatch.setattr(tuner, "configs", tuner.configs[:1])
    for module in (op, chunk_delta_h, chunk_o):
        monkeypatch.setattr(module, "exp", lambda x: tl.exp(x))


@pytest.mark.parametrize(("keep", "slots"), [(True, [2, 0, 1]), (False, [1, 1, 0])])
def test_both_ways_agree(device: torch.device, keep: bool, slots: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    draw = partial(torch.randn, generator=generator)
    tokens = sum(LENS)
    q, k = draw(2, tokens, HEADS, DIM).to(device, torch.float16)
    v = draw(tokens, VALUE_HEADS, DIM).to(device, torch.float16)
    a, b = draw(2, tokens, VALUE_HEADS).to(device, torch.float16)
    a_log, dt_bias = draw(2, VALUE_HEADS).to(device)
    of_sglang, of_torch = border._gates(a_log, dt_bias, a, b), gates(a_log, dt_bias, a, b)
    for one, other in zip(of_sglang, of_torch, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=0)  # beta is rounded to half
    inputs = RuleInputs(q, k, v, *of_torch)
    states = draw(3, VALUE_HEADS, DIM, DIM).to(device)
    kept, wanted_kept = states.clone(), states.clone()
    found = border._rule(TritonGDNKernel(), inputs, kept, stretch(slots, device), keep)
    wanted = rule_by_torch(inputs, wanted_kept, stretch(slots, device), keep)
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-2)
    torch.testing.assert_close(kept, wanted_kept, rtol=0, atol=2e-2)
    assert torch.equal(kept, states) != keep
