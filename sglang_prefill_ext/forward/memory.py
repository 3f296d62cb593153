"""Temporary memory of a device: measure what work takes and what is free, and model it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch
from torch.profiler import ProfilerActivity, profile

SAFETY = 1.25
"""Measured memory is multiplied by this, as served layouts differ from the measured ones."""


def peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Run `work`; return by how much it raised the memory in use at its highest, in bytes.

    Args:
        device: on CUDA torch's allocator counts, on the CPU torch's profiler. Neither sees memory
            that other libraries allocate.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    return _peak_on_cpu(work)


def kept_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Run `work`; return the device memory that it keeps, by whatever library, in bytes.

    Args:
        device: on CUDA, no other process may allocate memory meanwhile. On the CPU the result is 0,
            since a process's use of host memory says little about what it keeps.
    """
    if device.type != "cuda":
        work()
        return 0
    before = free_bytes(device)
    work()
    return max(0, before - free_bytes(device))


def free_bytes(device: torch.device) -> int:
    """Memory that torch could still allocate, in bytes.

    On CUDA, torch's allocator first frees its unused blocks. Those that it keeps do not count: in
    the pools of CUDA graphs, SGLang's and ours, they look free to it, but only a capture can use
    them.
    """
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


def _peak_on_cpu(work: Callable[[], object]) -> int:
    # Else the profiler logs on every CPU-only machine that there is no GPU.
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
    """The measured peak memory of one forward, in bytes."""

    tokens: int
    rows: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """The most temporary memory that a forward is expected to take."""

    fixed_bytes: int
    bytes_per_token: int
    bytes_per_row: int


def fit_memory(
    some: Sample, most: Sample, most_rows: Sample, *, beyond: bool = False
) -> MemoryModel:
    """Fit a model to three samples: `SAFETY` times a bound for all sizes between them.

    The peak of a forward is the largest of the peaks of its layers, its attention and its read-out.
    Each of these grows linearly, except that work done in chunks stops growing at the first whole
    chunk. From there on, the peak lies below every straight line between two of its points, and so
    below the model, which goes through the samples. Beyond them it may not: k times as many tokens
    and rows can take k times the memory of `most`, but no more.

    Args:
        some: a forward that is just large enough for whole chunks.
        most: as many tokens as a forward may have, or fewer, see `beyond`.
        most_rows: as many tokens, and more rows.
        beyond: the model shall bound larger forwards, too.
    """
    least = Sample(0, 0, 0) if beyond else some
    assert least.tokens < most.tokens == most_rows.tokens, (least, most, most_rows)
    more_rows = most_rows.rows - most.rows
    per_row = max(0.0, (most_rows.peak_bytes - most.peak_bytes) / more_rows)
    by_rows = per_row * (most.rows - least.rows)
    more_tokens = most.tokens - least.tokens
    per_token = max(0.0, (most.peak_bytes - least.peak_bytes - by_rows) / more_tokens)
    fixed = max(
        each.peak_bytes - per_token * each.tokens - per_row * each.rows
        for each in (some, most, most_rows)
    )
    rates = (max(0.0, fixed), per_token, per_row)
    return MemoryModel(*(math.ceil(SAFETY * rate) for rate in rates))


_READOUT_BYTES = 64 << 20
_MOST_READOUT_BYTES = 512 << 20
"""Enough for float32 logits of 500 reads and more with the largest vocabularies. Few forwards have
more reads that need logits; a smaller chunk would read the output head, hundreds of MB, more
often."""

_READOUT_SHARE = 16


def readout_bytes(asked_mib: int, device_type: str, free: int) -> int:
    """Return how many bytes one chunk of logits over the vocabulary may have.

    Reading a chunk takes about three times as much memory.

    Args:
        asked_mib: the operator's choice; 0: choose by the device.
        device_type: `torch.device.type`.
        free: free memory of the device, in bytes; the same number on every rank.
    """
    if asked_mib:
        return asked_mib << 20
    if device_type != "cuda":
        return _READOUT_BYTES
    return min(max(_READOUT_BYTES, free // _READOUT_SHARE), _MOST_READOUT_BYTES)
