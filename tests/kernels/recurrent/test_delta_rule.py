"""SGLang's kernels of the gated delta rule, as packed forwards call them, against torch."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
import triton.language as tl
from sglang.kernels.ops.attention.fla import chunk_delta_h, chunk_fwd, chunk_o, op, utils
from sglang.srt.layers.attention.linear.kernels.gdn_triton import TritonGDNKernel

from sglang_prefill_ext.border.model.recurrent.delta_rule import carry, kernel_inputs
from sglang_prefill_ext.recurrent.inputs import delta_rule_inputs
from sglang_prefill_ext.recurrent.layers import by_torch
from tests.kernels.recurrent.parts import part_of

pytestmark = pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")

HEADS, VALUE_HEADS, DIM = 2, 4, 64
LENS = [3, 70, 1]


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
    weights = draw(2, VALUE_HEADS).to(device)
    of_sglang, of_torch = (
        kernel_inputs(*weights, q, k, v, a, b),
        delta_rule_inputs(*weights, q, k, v, a, b),
    )
    compared = of_torch._replace(q=of_torch.q * DIM**0.5)
    for one, other in zip(of_sglang[:5], compared[:5], strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one.float(), other.float(), rtol=1e-3, atol=1e-3)
    states = draw(3, VALUE_HEADS, DIM, DIM).to(device)
    kept, wanted_kept = states.clone(), states.clone()
    found, wanted = torch.full_like(v, torch.nan), torch.full_like(v, torch.nan)
    part = part_of(LENS, slots, device, keep=keep)
    carry(of_sglang, kept, part, found)
    by_torch(delta_rule_inputs).carry(of_torch, wanted_kept, part, wanted)
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-2)
    torch.testing.assert_close(kept, wanted_kept, rtol=0, atol=2e-2)
    assert torch.equal(kept, states) != keep


def test_the_kernels_are_called_as_by_sglang(device: torch.device) -> None:
    """Apart from the lists of chunks, which SGLang makes itself."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(2))
    q, k = draw(2, sum(LENS), HEADS, DIM).to(device, torch.float16)
    v = draw(sum(LENS), VALUE_HEADS, DIM).to(device, torch.float16)
    a, b = draw(2, sum(LENS), VALUE_HEADS).to(device, torch.float16)
    inputs = kernel_inputs(*draw(2, VALUE_HEADS).to(device), q, k, v, a, b)
    states, part = (
        draw(3, VALUE_HEADS, DIM, DIM).to(device),
        part_of(LENS, [0, 2, 1], device, keep=True),
    )
    own, of_sglang, found = states.clone(), states.clone(), torch.full_like(v, torch.nan)
    carry(inputs, own, part, found)
    assert inputs.beta is not None
    wanted, _, _ = TritonGDNKernel().extend(
        *(q[None], k[None], v[None], inputs.g[None], inputs.beta[None]),
        ssm_states=of_sglang,
        cache_indices=part.slots,
        query_start_loc=part.bounds,
    )
    assert torch.equal(found, wanted[0])
    assert torch.equal(own, of_sglang)
