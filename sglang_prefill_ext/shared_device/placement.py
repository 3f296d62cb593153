"""Placement of several schedulers on one device: cores, visible devices, CUDA MPS, and doubts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sglang_prefill_ext.errors import ConfigError

CPU = "cpu"
CORES_FLAG = "--prefill-only-scheduler-cores"

_MPS_DIRECTORY = "/tmp/nvidia-mps"
_MPS_CONTROL = "control"  # the pipe that the daemon makes there


@dataclass(frozen=True, slots=True)
class Placement:
    """The cores and devices that a process may use.

    Attributes:
        pid: its id.
        cores: the cores that it may run on, ascending.
        visible_devices: ``CUDA_VISIBLE_DEVICES``; None if it is not set.
        mps: whether the pipe of a CUDA MPS control daemon is in `mps_directory`.
        mps_directory: where this process looks for that pipe.
        mps_thread_percentage: ``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``; None if it is not set.
    """

    pid: int
    cores: list[int]
    visible_devices: str | None
    mps: bool
    mps_directory: str
    mps_thread_percentage: str | None

    @classmethod
    def of_this_process(cls, environment: Mapping[str, str] = os.environ) -> Self:
        directory = environment.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_DIRECTORY)
        return cls(
            pid=os.getpid(),
            cores=usable_cores(),
            visible_devices=environment.get("CUDA_VISIBLE_DEVICES"),
            mps=(Path(directory) / _MPS_CONTROL).exists(),
            mps_directory=directory,
            mps_thread_percentage=environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
        )


def usable_cores() -> list[int]:
    """The cores that this thread may run on, ascending."""
    return sorted(os.sched_getaffinity(0))


def doubts(placement: Placement, device: str, schedulers: int) -> Iterator[str]:
    """Yield why `schedulers` on one device may not pay here, and the remedy."""
    if device == CPU:
        yield "On a CPU the schedulers take the cores that the model computes on from each other."
    elif not placement.mps:
        yield (
            f"No CUDA MPS daemon has its pipe in {placement.mps_directory}: kernels of different "
            "schedulers take turns instead of running side by side. Start one with "
            "nvidia-cuda-mps-control -d, or take one scheduler where the device is busy anyway."
        )
    if len(placement.cores) <= schedulers:
        yield (
            f"{schedulers} schedulers and a front end share {len(placement.cores)} cores. "
            f"Give the server at least {schedulers + 1}, or start fewer schedulers."
        )


def core_groups(cores: Sequence[int], schedulers: int, each: int = 0) -> list[list[int]]:
    """Divide cores among schedulers.

    Args:
        cores: the usable cores.
        schedulers: number of groups.
        each: cores of a group; 0: divide all evenly; groups share cores if there are too few.

    Raises:
        ConfigError: there are fewer than `each * schedulers` cores.
    """
    if each * schedulers > len(cores):
        raise ConfigError(
            f"{CORES_FLAG} {each} needs {each * schedulers} cores for {schedulers} schedulers, "
            f"and {len(cores)} may be used. Give fewer, or 0 to bind none."
        )
    size = each or max(1, len(cores) // schedulers)
    starts = (rank * size % len(cores) for rank in range(schedulers))
    return [list(cores[start : start + size]) for start in starts]
