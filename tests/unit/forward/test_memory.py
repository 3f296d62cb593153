from __future__ import annotations

from collections.abc import Callable
from functools import partial

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.forward.memory import (
    SAFETY,
    MemoryModel,
    Sample,
    fit_memory,
    free_bytes,
    kept_bytes,
    peak_bytes,
    readout_bytes,
)

CPU = torch.device("cpu")
MIB = 1 << 20


def expected_bytes(model: MemoryModel, tokens: int, rows: int) -> int:
    return model.fixed_bytes + model.bytes_per_token * tokens + model.bytes_per_row * rows


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
    """The memory of a CUDA device; torch's allocator keeps some until its cache is emptied."""

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
    emptied = []
    assert kept_bytes(torch.device("cuda"), lambda: emptied.append(device.emptied)) == 3 * MIB
    assert emptied == [1]
    assert device.emptied == 2


def test_without_cuda_nothing_is_known_to_be_kept() -> None:
    done: list[int] = []
    assert kept_bytes(CPU, lambda: done.append(1)) == 0
    assert done == [1]


def sample_of(chunk: int, per_token: int, per_row: int, tokens: int, rows: int) -> Sample:
    """Memory of layers grows with tokens, of the read-out with rows; that of a chunk is fixed."""
    return Sample(tokens, rows, max(chunk, per_token * tokens, per_row * rows))


RATES = st.integers(0, 10**4)
SAMPLES = st.builds(partial, st.just(sample_of), st.integers(0, 10**6), RATES, RATES)


@given(SAMPLES, st.integers(100, 4000), st.integers(2, 64))
def test_what_is_measured_on_the_way_is_expected(
    sample: Callable[[int, int], Sample], tokens: int, row_tokens: int
) -> None:
    model = fit_memory(sample(100, 1), sample(4000, 62), sample(4000, 2000))
    rows = tokens // row_tokens
    assert sample(tokens, rows).peak_bytes <= expected_bytes(model, tokens, rows)


@given(SAMPLES, st.integers(4000, 64_000), st.integers(2, 64))
def test_what_larger_forwards_take_is_expected(
    sample: Callable[[int, int], Sample], tokens: int, row_tokens: int
) -> None:
    """The two larger samples may end while the memory of a whole chunk still hides what grows."""
    model = fit_memory(sample(4000, 1), sample(4000, 62), sample(4000, 2000), beyond=True)
    rows = tokens // row_tokens
    assert sample(tokens, rows).peak_bytes <= expected_bytes(model, tokens, rows)


def test_a_row_that_fills_whole_chunks_is_expected_once() -> None:
    samples = (Sample(100, 1, 900), Sample(100, 2, 400), Sample(100, 50, 400))
    assert fit_memory(*samples, beyond=True) == MemoryModel(625, 5, 0)


@pytest.mark.parametrize(
    ("peaks", "model"),
    [
        ((400, 400, 400), MemoryModel(500, 0, 0)),
        ((400, 4000, 4000), MemoryModel(0, 5, 0)),
        ((400, 4000, 3000), MemoryModel(0, 5, 0)),
        ((400, 400, 800), MemoryModel(495, 0, 5)),
    ],
    ids=["constant", "by tokens", "less for more rows", "by rows"],
)
def test_what_costs_no_memory_is_expected_to_cost_none(
    peaks: tuple[int, int, int], model: MemoryModel
) -> None:
    sizes = ((100, 1), (1000, 1), (1000, 101))
    samples = [Sample(*size, peak) for size, peak in zip(sizes, peaks, strict=True)]
    assert fit_memory(*samples) == model


def test_measured_memory_is_exceeded_by_the_safety_factor_alone() -> None:
    samples = (Sample(100, 1, 1100), Sample(1000, 10, 5000), Sample(1000, 110, 6000))
    model = fit_memory(*samples)
    assert (model.bytes_per_row, model.bytes_per_token) == (13, 6)
    for each in samples:
        exactly = SAFETY * each.peak_bytes
        assert exactly <= expected_bytes(model, each.tokens, each.rows) <= exactly + 1200


@pytest.mark.parametrize(
    ("asked_mib", "device", "free_gib", "mib"),
    [
        (7, "cuda", 100, 7),
        (7, "cpu", 100, 7),
        (0, "cpu", 100, 64),
        (0, "cuda", 100, 512),
        (0, "cuda", 4, 256),
        (0, "cuda", 0, 64),
    ],
)
def test_memory_of_the_read_out(asked_mib: int, device: str, free_gib: int, mib: int) -> None:
    assert readout_bytes(asked_mib, device, free_gib << 30) == mib << 20
