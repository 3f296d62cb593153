"""Lets Triton's interpreter run SGLang's kernels of the gated delta rule."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import triton.language as tl
from sglang.kernels.ops.attention.fla import chunk_delta_h, chunk_fwd, chunk_o, op, utils


@pytest.fixture(autouse=True)
def delta_rule_interpreted(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import it to use it.

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
