"""SGLang's kernels of Mamba-2, as packed forwards call them, against torch."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.kernels.ops.mamba.triton_ops import (
    mamba_chunk_scan_combined,
    ssd_bmm,
    ssd_chunk_scan,
    ssd_chunk_state,
    ssd_state_passing,
)
from torch import Tensor

from sglang_prefill_ext.border.model.recurrent.state_space import by_kernels
from sglang_prefill_ext.recurrent.inputs import state_space_inputs
from sglang_prefill_ext.recurrent.layers import by_torch
from sglang_prefill_ext.recurrent.rule import DevicePart
from tests.kernels.recurrent.parts import part_of

HEADS, GROUPS, HEAD_DIM, STATE_DIM, GRID = 4, 2, 16, 16, 32
SEQUENCES = {
    "across chunks": ([3, 70, 1], [2, 0, 1]),
    "on the grid": ([32, 5, 27, 64], [1, 0, 2, 3]),
    "within a chunk": ([1, 2, 3], [0, 1, 2]),
    "one state": ([4, 40, 9], [1, 1, 1]),
}


def tuners() -> list[Any]:
    return [
        ssd_bmm._bmm_chunk_fwd_kernel,
        ssd_chunk_scan._chunk_scan_fwd_kernel,
        ssd_chunk_state._chunk_cumsum_fwd_kernel,
        ssd_chunk_state._chunk_state_fwd_kernel,
        ssd_chunk_state._chunk_state_varlen_kernel,
        ssd_state_passing._state_passing_fwd_kernel,
    ]


@pytest.fixture(autouse=True)
def _as_interpreted(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter run SGLang's kernels, which has no device and no tuner."""
    if device.type == "cuda":
        return
    no_device = SimpleNamespace(device=lambda _index: nullcontext())
    monkeypatch.setattr(torch, "get_device_module", lambda _device: no_device)
    for tuner in tuners():
        monkeypatch.setattr(tuner, "configs", tuner.configs[:1])


class Case:
    """Inputs and weights of a layer."""

    def __init__(self, tokens: int, device: torch.device) -> None:
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(tokens))
        self.a = (-draw(HEADS).exp() / 16).to(device)  # mild, as the interpreter warns of overflow
        self.d, self.dt_bias = draw(2, HEADS).to(device)
        self.x = draw(tokens, HEADS, HEAD_DIM).to(device, torch.float16)
        self.b, self.c = draw(2, tokens, GROUPS, STATE_DIM).to(device, torch.float16)
        self.dt = draw(tokens, HEADS + 3).to(device, torch.float16)[:, :HEADS]
        self.states = draw(5, HEADS, HEAD_DIM, STATE_DIM).to(device)

    @property
    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.a, self.d, self.dt_bias

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.x, self.b, self.c, self.dt

    def by_kernels(self, part: DevicePart) -> tuple[Tensor, Tensor]:
        """Outputs, and all states."""
        way, out, states = (
            by_kernels(*self.weights),
            torch.full_like(self.x, torch.nan),
            self.states,
        )
        states = states.clone()
        way.carry(way.prepare(*self.inputs), states, part, out)
        return out, states


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", SEQUENCES)
def test_both_ways_agree(device: torch.device, name: str, keep: bool) -> None:
    lens, slots = SEQUENCES[name]
    keep = keep and len({*slots}) == len(slots)
    case, part = Case(sum(lens), device), part_of(lens, slots, device, keep=keep, grid=GRID)
    out, states = case.by_kernels(part)
    way = by_torch(partial(state_space_inputs, *case.weights))
    wanted, wanted_states = torch.full_like(out, torch.nan), case.states.clone()
    way.carry(way.prepare(*case.inputs), wanted_states, part, wanted)
    torch.testing.assert_close(out, wanted, rtol=2e-2, atol=5e-2)
    torch.testing.assert_close(states, wanted_states, rtol=2e-2, atol=5e-2)
    assert torch.equal(states, case.states) != keep


def test_the_kernels_are_called_as_by_sglang(device: torch.device) -> None:
    """Apart from the lists of chunks, which SGLang makes itself."""
    lens, slots = SEQUENCES["across chunks"]
    case, part = Case(sum(lens), device), part_of(lens, slots, device, keep=True, grid=GRID)
    out, states = case.by_kernels(part)
    sequences, chunks, starts = part.lists
    x, b, c, dt = (each[None] for each in case.inputs)
    of_sglang = torch.full_like(x, torch.nan)
    _, behind, _ = mamba_chunk_scan_combined(
        *(x, dt, case.a, b, c),
        chunk_size=GRID,
        D=case.d,
        dt_bias=case.dt_bias,
        seq_idx=sequences[None],
        chunk_indices=chunks,
        chunk_offsets=starts,
        cu_seqlens=part.bounds,
        initial_states=case.states[part.slots],
        return_varlen_states=True,
        return_track_states=True,
        dt_softplus=True,
        out=of_sglang,
        state_dtype=torch.float32,
    )
    assert torch.equal(out, of_sglang[0])
    assert torch.equal(states[part.slots], behind)
