"""Time several ways to compute the same tensors on one CUDA device."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import torch
import triton
from torch import Tensor

from bench.record import commit

Way = Callable[[], tuple[Tensor, ...]]

Build = Callable[[], Way]
"""Returns the function to time. It first does all work that happens once, such as planning."""

REPETITIONS = 50
FLUSH_BYTES = 256 * 2**20  # several times the L2 cache
COPY_BYTES = 2**30
MATRIX_SIZE = 8192


@dataclass(frozen=True)
class Case:
    """One problem.

    Attributes:
        kernel: which kernel it is for.
        shape: its sizes by name.
        dtype: of the inputs.
        moved_bytes: bytes that every way must at least read and write.
        flops: operations that every way must at least do.
        tolerance: largest allowed absolute difference between the results of two ways.
        ours: our ways. The first must run; others that cannot run here are reported and skipped.
        baselines: ways of other projects; those that cannot run here are reported and skipped.
    """

    kernel: str
    shape: Mapping[str, int]
    dtype: torch.dtype
    moved_bytes: int
    flops: int
    tolerance: float
    ours: Mapping[str, Build]
    baselines: Mapping[str, Build]


def cuda_device() -> torch.device:
    """The device to measure on.

    Raises:
        SystemExit: there is no CUDA device; times in Triton's interpreter would mean nothing.
    """
    if not torch.cuda.is_available():
        raise SystemExit("kernels are measured on a CUDA device, and torch finds none here")
    if triton.knobs.runtime.interpret:
        raise SystemExit("TRITON_INTERPRET is set: unset it to measure compiled kernels")
    return torch.device("cuda")


def measure(cases: Iterable[Case]) -> None:
    """Compare all ways of each case with the first one, and print a line for each.

    Raises:
        SystemExit: at the end, if two ways of a case differed; no line is printed for it.
    """
    wrong = sum(not _measured(case, median_ms) for case in cases)
    if wrong:
        raise SystemExit(f"{wrong} of the cases had wrong results")


def _measured(case: Case, ms_of: Callable[[Way], float]) -> bool:
    """Print the lines of a case, or report on standard error that ways differ and return False."""
    expected: tuple[Tensor, ...] | None = None
    times: dict[str, float] = {}
    for name, build in (*case.ours.items(), *case.baselines.items()):
        try:
            way = build()
            found = way()
            expected = found if expected is None else expected
            torch.testing.assert_close(
                found, expected, atol=case.tolerance, rtol=0, check_dtype=False
            )
            times[name] = ms_of(way)
        except AssertionError as error:
            _tell(case, f"{name} differs: {error}")
            return False
        except Exception as error:
            # A library that is missing or unfit may raise anything; our first way must not fail.
            if expected is None:
                raise
            _tell(case, f"without {name}: {type(error).__name__}: {error}")
    for record in _records(case, times):
        print(json.dumps(record), flush=True)
    return True


def _tell(case: Case, what: str) -> None:
    print(f"{case.kernel} {dict(case.shape)}: {what}", file=sys.stderr, flush=True)


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
    """GB/s that a plain copy reads and writes here: the limit of memory-bound kernels."""
    source = torch.empty(COPY_BYTES, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / median_ms(lambda: (target.copy_(source),)) / 1e6


@cache
def matrix_rate(dtype: torch.dtype) -> float:
    """TFLOP/s of a large matrix product here: the limit of compute-bound kernels."""
    factors = torch.randn(2, MATRIX_SIZE, MATRIX_SIZE, dtype=dtype, device="cuda").unbind()
    return 2 * MATRIX_SIZE**3 / median_ms(lambda: (torch.matmul(*factors),)) / 1e9


def _records(case: Case, times: Mapping[str, float]) -> Iterable[dict[str, object]]:
    fastest = min((ms for name, ms in times.items() if name in case.baselines), default=None)
    floor = max(
        case.moved_bytes / copy_bandwidth() / 1e6, case.flops / matrix_rate(case.dtype) / 1e9
    )
    for name, ms in times.items():
        yield {
            # How many times faster than the fastest baseline.
            "ratio": None if fastest is None else round(fastest / ms, 3),
            "kernel": case.kernel,
            "way": name,
            **case.shape,
            "dtype": str(case.dtype).removeprefix("torch."),
            "us": round(ms * 1e3, 2),
            # The time that a plain copy or matrix product would need, over this time.
            "of_floor": round(floor / ms, 3),
            "gb_per_s": round(case.moved_bytes / ms / 1e6, 1),
            "tflop_per_s": round(case.flops / ms / 1e9, 2),
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            **commit(Path(__file__).parent),
        }
