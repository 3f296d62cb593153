"""Devices on which a kernel may be launched, and launches that are kept; no memory is accessed."""

from __future__ import annotations

import pytest
import torch
import triton
from prefill_kernels.errors import KernelArgumentError, check_launchable
from prefill_kernels.prepared import MOST, PreparedLaunches
from torch._subclasses import FakeTensorMode, fake_tensor


@pytest.fixture
def second_device(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """A pretended tensor on the second of two CUDA devices."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda _: None)  # needs the device
    with FakeTensorMode():
        return torch.empty(3, device="cuda:1")


def test_tensors_of_another_device_than_the_current_one_are_refused(
    second_device: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KernelArgumentError, match=r"q is on cuda:1: cuda:0 is current; launch"):
        check_launchable("q", second_device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    check_launchable("q", second_device)


def test_a_cpu_is_for_the_interpreter_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(KernelArgumentError, match="q is on cpu: move it to a CUDA device"):
        check_launchable("q", torch.empty(3))
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    check_launchable("q", torch.empty(3))


def test_a_bounded_number_of_launches_is_kept_with_the_last_one() -> None:
    launches = PreparedLaunches[int]()
    keys = range(2 * MOST + 1)
    for key in keys:
        assert launches.keep(key, -key) == launches.get(key) == -key
        assert sum(launches.get(each) is not None for each in keys) <= MOST
