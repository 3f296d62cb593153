"""Temporary memory of a device: how much some work takes, and how much there is."""

from __future__ import annotations

import os
from collections.abc import Callable

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


def free_bytes(device: torch.device) -> int:
    """Memory that torch could still take, in bytes."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
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
