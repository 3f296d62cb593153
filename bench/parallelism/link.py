"""Measure an all-reduce between two processes of this machine, by gloo as in ranks on a CPU."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed

_ROUNDS = 200
_SMALL, _LARGE = 64, 1 << 19  # float32 numbers


@dataclass(frozen=True, slots=True)
class Link:
    """Speed of an all-reduce of two ranks: it takes ``us / 1e6 + bytes / (gb_s * 1e9)`` seconds."""

    gb_s: float
    us: float

    @classmethod
    def of_times(cls, small_s: float, large_s: float) -> Link:
        """Fit the speed to the median times of a small and a large all-reduce, in seconds."""
        more_bytes = 4 * (_LARGE - _SMALL)
        return cls(more_bytes / max(large_s - small_s, 1e-9) / 1e9, small_s * 1e6)


def measure_link(cores: Sequence[int]) -> Link:
    """Time all-reduces between two processes, each on its own core."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="link-") as directory:
        results = context.SimpleQueue()
        store = f"file://{Path(directory) / 'store'}"
        ranks = [
            context.Process(target=_rank, args=(rank, cores[rank], store, results))
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            raise RuntimeError("a process that should measure all-reduces has failed")
        return Link.of_times(*results.get())


def _rank(rank: int, core: int, store: str, results: Any) -> None:
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    times = [_median_s(torch.ones(count)) for count in (_SMALL, _LARGE)]
    if rank == 0:
        results.put(times)
    torch.distributed.destroy_process_group()


def _median_s(values: torch.Tensor) -> float:
    times = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        torch.distributed.all_reduce(values)
        values.fill_(1.0)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[_ROUNDS // 10 :])
