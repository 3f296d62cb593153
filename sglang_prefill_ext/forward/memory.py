"""Temporary memory of a device: how much some work takes, and how much there is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch
from torch.profiler import ProfilerActivity, profile


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
