from __future__ import annotations

import psutil
import pytest
import torch

from sglang_prefill_ext.forward.memory import free_bytes, kept_bytes, peak_bytes

CPU = torch.device("cpu")
MIB = 1 << 20


def test_the_peak_is_what_was_in_use_at_once() -> None:
    def work() -> None:
        first = torch.zeros(4 * MIB, dtype=torch.uint8)
        second = torch.zeros(2 * MIB, dtype=torch.uint8)
        del first
        third = torch.zeros(3 * MIB, dtype=torch.uint8)
        del second, third

    assert peak_bytes(CPU, work) == 6 * MIB


def test_what_was_there_before_does_not_count() -> None:
    before = torch.zeros(8 * MIB, dtype=torch.uint8)
    assert peak_bytes(CPU, lambda: before.add_(1)) < MIB


def test_free_memory_is_a_part_of_the_machines() -> None:
    assert 0 < free_bytes(CPU) < psutil.virtual_memory().total


class FakeDevice:
    """What a CUDA device says of its memory; torch's allocator keeps some until it is emptied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: list[int], kept: int = 0) -> None:
        self.emptied = 0
        self._free, self._kept = free, kept
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
        monkeypatch.setattr(torch.cuda, "empty_cache", self._empty)
        monkeypatch.setattr(torch.cuda, "mem_get_info", self._info)

    def _empty(self) -> None:
        self.emptied, self._kept = self.emptied + 1, 0

    def _info(self, _device: torch.device) -> tuple[int, int]:
        return self._free.pop(0) - self._kept, 80 * MIB


def test_free_on_a_device_is_what_nobody_has_taken_not_even_for_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeDevice(monkeypatch, free=[10 * MIB], kept=4 * MIB)
    assert free_bytes(torch.device("cuda")) == 10 * MIB


def test_what_work_keeps_of_a_device_is_what_is_missing_there_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = FakeDevice(monkeypatch, free=[10 * MIB, 7 * MIB])
    with kept_bytes(torch.device("cuda")) as kept:
        assert device.emptied == 1
    assert kept.bytes == 3 * MIB
    assert device.emptied == 2


def test_without_cuda_nothing_is_known_to_be_kept() -> None:
    with kept_bytes(CPU) as kept:
        pass
    assert kept.bytes == 0
