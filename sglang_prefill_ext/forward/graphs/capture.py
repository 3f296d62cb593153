"""Record work once, and run it again on what its tensors hold by then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

Work: TypeAlias = Callable[[], Tensor]
"""Work on the device that asks the host for nothing new; its result is one tensor."""

WARM_UPS = 2
"""Runs before a capture: kernels are compiled, and libraries set up what they keep."""


class Capture(Protocol):
    """A way to record work."""

    def capture(self, work: Work) -> Work:
        """Return what runs `work` again: on the same tensors, into the same result.

        Raises:
            RuntimeError: the work cannot be recorded.
        """


class CallAgain:
    """Records nothing: where launches cost little, the work itself is run again."""

    def capture(self, work: Work) -> Work:
        work()
        return work


class CudaCapture:
    """CUDA graphs that share one memory pool: no two of them ever run at the same time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(self, work: Work) -> Work:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                work()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                result = work()
        finally:
            torch.cuda.set_stream(current)  # torch leaves the other one current if ending fails
        return _Replay(graph, result, work)


@dataclass(frozen=True, slots=True)
class _Replay:
    graph: torch.cuda.CUDAGraph
    result: Tensor
    work: Work
    """Holds the tensors that the graph reads at the addresses which they had."""

    def __call__(self) -> Tensor:
        self.graph.replay()
        return self.result


def capture_for(device: torch.device) -> Capture:
    """Return the way of a device."""
    return CudaCapture() if device.type == "cuda" else CallAgain()
