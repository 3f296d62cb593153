"""Record work once as a CUDA graph, and replay it on the current contents of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

Work: TypeAlias = Callable[[], Tensor]
"""Work on the device that needs no new data from the host; returns one tensor."""

WARM_UPS = 2
"""Runs before a capture, in which kernels are compiled and libraries allocate workspaces."""


class Capture(Protocol):
    """A way to record work."""

    def capture(self, work: Work) -> Work:
        """Return a function that runs `work` again, on the same tensors and into the same result.

        Raises:
            RuntimeError: the work cannot be recorded.
        """


class CallAgain:
    """Records nothing, but calls the work again; for devices where launches cost little."""

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
            # SGLang's threads that move K/V may call CUDA meanwhile.
            with torch.cuda.graph(graph, self._pool, self._stream, "thread_local"):
                result = work()
        finally:
            torch.cuda.set_stream(current)  # if the capture fails, torch leaves its stream current
        return _Replay(graph, result, work)


@dataclass(frozen=True, slots=True)
class _Replay:
    graph: torch.cuda.CUDAGraph
    result: Tensor
    work: Work
    """Keeps alive the tensors whose addresses the graph reads."""

    def __call__(self) -> Tensor:
        self.graph.replay()
        return self.result


def capture_for(device: torch.device) -> Capture:
    """Return the `Capture` for a device."""
    return CudaCapture() if device.type == "cuda" else CallAgain()
