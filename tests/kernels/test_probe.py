"""The start-up check of the kernels passes if they are right, and fails if one is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from prefill_kernels.shared_prefix_attention import op

from sglang_prefill_ext.attention import probe
from sglang_prefill_ext.attention.inputs import HeadShape

HEADS = HeadShape(num_heads=4, num_key_heads=2, head_dim=64, value_dim=64)
FEW = HeadShape(num_heads=2, num_key_heads=1, head_dim=16, value_dim=16)
"""Where kernels are right or wrong whatever the heads."""


def test_right_kernels_pass(device: torch.device, dtype: torch.dtype) -> None:
    assert probe.wrong_kernel(HEADS, dtype, device) == ""


def test_right_kernels_pass_for_an_encoder(device: torch.device) -> None:
    assert probe.wrong_kernel(HEADS, torch.float32, device, causal=False) == ""


@pytest.mark.parametrize("broken", ["shared_prefix_attention", "merge_state", "label_readout"])
def test_a_wrong_kernel_is_named(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    from sglang_prefill_ext.attention import kernels

    owner = {"shared_prefix_attention": kernels.fused, "merge_state": kernels}.get(broken, probe)
    right = getattr(owner, broken)

    def wrong(*args: object, **kwargs: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = right(*args, **kwargs)
        return out + 1, lse

    monkeypatch.setattr(owner, broken, wrong)
    name = {
        "shared_prefix_attention": "fused attention",
        "merge_state": "merged attention",
        "label_readout": "label read-out",
    }[broken]
    assert probe.wrong_kernel(FEW, torch.float32, device).startswith(f"{name} is off by")


def test_a_wrong_way_to_join_divided_keys_is_named(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = op.merge_parts

    def wrong(*args: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = right(*args)
        return out + 1, lse

    monkeypatch.setattr(op, "merge_parts", wrong)
    assert probe.wrong_kernel(FEW, torch.float32, device).startswith("divided attention is off")


def test_the_reference_is_exact_whatever_the_model_is_allowed(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--enable-tf32-matmul` makes torch's float32 products less exact than the kernels."""
    used: list[str] = []
    forward = probe.DenseAttention.forward

    def noting(*args: Any) -> torch.Tensor:
        used.append(torch.get_float32_matmul_precision())
        return forward(*args)

    monkeypatch.setattr(probe.DenseAttention, "forward", noting)
    torch.set_float32_matmul_precision("high")
    try:
        assert probe.wrong_kernel(FEW, torch.float32, device) == ""
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(used) == {"highest"}


def test_a_kernel_that_raises_is_named(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(probe, "label_readout", fail)
    wrong = probe.wrong_kernel(FEW, torch.float32, device)
    assert wrong == "label read-out fails: RuntimeError: no such instruction"


def test_a_nan_is_wrong(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_readout_error", lambda dtype, device: float("nan"))
    assert "is off by nan" in probe.wrong_kernel(FEW, torch.float32, device)
