"""Temporary memory of a device: how much some work takes, how much there is, and a model of it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch
from torch.profiler import ProfilerActivity, profile

SAFETY = 1.25
"""Measured memory is multiplied by this: layouts differ from those that were measured."""


def peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Run `work`; return by how much it raised the memory in use at its highest, in bytes.

    Args:
        device: CUDA, where the allocator counts; else the CPU, where torch's profiler does. Memory
            that other libraries take is not seen on either.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    return _peak_on_cpu(work)


@dataclass(slots=True)
class Kept:
    """Memory of a device that some work has taken and not given back, in bytes."""

    bytes: int = 0


@contextmanager
def kept_bytes(device: torch.device) -> Iterator[Kept]:
    """Measure what the body keeps, whoever took it; on leaving it is in what was yielded.

    Args:
        device: CUDA, of which nobody else takes memory meanwhile; else 0 bytes, since what a
            process has taken of the host's memory says little about what it keeps.
    """
    kept = Kept()
    before = _untaken_bytes(device)
    yield kept
    kept.bytes = max(0, before - _untaken_bytes(device))


def _untaken_bytes(device: torch.device) -> int:
    """Memory that nobody has taken, not even torch's allocator for later."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


def free_bytes(device: torch.device) -> int:
    """Memory that torch could still take, in bytes.

    On CUDA without what torch's allocator keeps: in the pools of CUDA graphs, SGLang's and ours,
    blocks are free to it that only a capture gets.
    """
    if device.type == "cuda":
        return _untaken_bytes(device)
    return int(psutil.virtual_memory().available)


def _peak_on_cpu(work: Callable[[], object]) -> int:
    # Without this the profiler tells every user of a CPU that there is no GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    events = seen.profiler.kineto_results.events()
    changes = [(each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]"]
    in_use = peak = 0
    for _, change in sorted(changes, key=lambda each: each[0]):
        in_use += change
        peak = max(peak, in_use)
    return peak


@dataclass(frozen=True, slots=True)
class Sample:
    """What one forward took at its highest, in bytes."""

    tokens: int
    rows: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Temporary memory that a forward is expected to take at most."""

    fixed_bytes: int
    bytes_per_token: int
    bytes_per_row: int

    def num_bytes(self, tokens: int, rows: int) -> int:
        """Of a forward of so many tokens and rows."""
        return self.fixed_bytes + self.bytes_per_token * tokens + self.bytes_per_row * rows


def fit_memory(some: Sample, most: Sample, most_rows: Sample) -> MemoryModel:
    """Return a model that lies `SAFETY` above forwards of a size between the samples.

    The peak of a forward is the largest of what its layers, its attention and its read-out take.
    Each grows evenly, except that what is done in chunks stops growing at the first whole one.
    Beyond there the peak lies below every straight line between two of its points, hence below
    the model, which is drawn through the samples.

    Args:
        some: a forward that is just large enough for whole chunks.
        most: as many tokens as a forward may have.
        most_rows: as many tokens, and more rows.
    """
    assert some.tokens < most.tokens == most_rows.tokens, (some, most, most_rows)
    more_rows = most_rows.rows - most.rows
    per_row = max(0.0, (most_rows.peak_bytes - most.peak_bytes) / more_rows)
    by_rows = per_row * (most.rows - some.rows)
    more_tokens = most.tokens - some.tokens
    per_token = max(0.0, (most.peak_bytes - some.peak_bytes - by_rows) / more_tokens)
    fixed = max(
        each.peak_bytes - per_token * each.tokens - per_row * each.rows
        for each in (some, most, most_rows)
    )
    rates = (max(0.0, fixed), per_token, per_row)
    return MemoryModel(*(math.ceil(SAFETY * rate) for rate in rates))


_READOUT_BYTES = 64 << 20
_MOST_READOUT_BYTES = 512 << 20
"""Logits in float32 of the largest vocabularies for 500 reads and more: a forward seldom has more
that need them, and the output head, hundreds of MB, is read once for each chunk."""

_READOUT_SHARE = 16


def readout_bytes(asked_mib: int, device_type: str, free: int) -> int:
    """Memory for logits over the vocabulary, which is taken some three times while they are read.

    Args:
        asked_mib: what the operator wants; 0 leaves it to the device.
        device_type: `torch.device.type`.
        free: of the device's memory, in bytes; the same number on every rank.
    """
    if asked_mib:
        return asked_mib << 20
    if device_type != "cuda":
        return _READOUT_BYTES
    return min(max(_READOUT_BYTES, free // _READOUT_SHARE), _MOST_READOUT_BYTES)
