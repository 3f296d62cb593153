"""Measure several ways to compute the same tensors on one CUDA device."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median

import torch
import triton
from torch import Tensor

Way = Callable[[], tuple[Tensor, ...]]

REPETITIONS = 50
FLUSH_BYTES = 256 * 2**20  # several times the L2 cache
COPY_BYTES = 2**30


@dataclass(frozen=True)
class Case:
    """One problem.

    Attributes:
        kernel: which kernel it is for.
        shape: its sizes by name.
        dtype: of the inputs.
        moved_bytes: device memory that every way must at least read and write.
        flops: operations that every way must at least do.
        tolerance: largest absolute difference between two ways.
    """

    kernel: str
    shape: Mapping[str, int]
    dtype: torch.dtype
    moved_bytes: int
    flops: int
    tolerance: float


def cuda_device() -> torch.device:
    """The device to measure on.

    Raises:
        SystemExit: there is none; times of the interpreter would mean nothing.
    """
    if not torch.cuda.is_available():
        raise SystemExit("kernels are measured on a CUDA device, and torch finds none here")
    if triton.knobs.runtime.interpret:
        raise SystemExit("TRITON_INTERPRET is set: unset it to measure compiled kernels")
    return torch.device("cuda")


def measure(case: Case, ways: Mapping[str, Way]) -> None:
    """Compare the results of all ways with the first one's, then print a line for each.

    Raises:
        AssertionError: two ways differ by more than the tolerance; nothing was printed.
    """
    first, *others = ways.values()
    expected = first()
    for way in others:
        torch.testing.assert_close(
            way(), expected, atol=case.tolerance, rtol=0, check_dtype=False, equal_nan=True
        )
    for name, way in ways.items():
        print(json.dumps(_record(case, name, median_ms(way))), flush=True)


def median_ms(way: Way) -> float:
    """Milliseconds on the device, with a cold L2 cache and without the time to launch."""
    way()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        way()
    flushed = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    events = [(_event(), _event()) for _ in range(REPETITIONS)]
    for start, stop in events:
        flushed.zero_()
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    return float(median(start.elapsed_time(stop) for start, stop in events))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@cache
def copy_bandwidth() -> float:
    """GB/s that a plain copy reads and writes here: what memory-bound kernels can reach."""
    source = torch.empty(COPY_BYTES, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / median_ms(lambda: (target.copy_(source),)) / 1e6


def _record(case: Case, way: str, ms: float) -> dict[str, object]:
    bandwidth = case.moved_bytes / ms / 1e6
    return {
        "kernel": case.kernel,
        "way": way,
        **case.shape,
        "dtype": str(case.dtype).removeprefix("torch."),
        "us": round(ms * 1e3, 2),
        "gb_per_s": round(bandwidth, 1),
        "of_copy_bandwidth": round(bandwidth / copy_bandwidth(), 3),
        "tflop_per_s": round(case.flops / ms / 1e9, 2),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
