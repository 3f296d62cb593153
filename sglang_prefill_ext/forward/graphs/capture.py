"""Record work once as a CUDA graph, and replay it on the current contents of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

Work: TypeAlias = Callable[[], Tensor]
"""Work on the device that needs no new data from the host; returns one tensor."""

WARM_UPS = 2
"""Runs before a capture, in which kernels are compiled and libraries allocate workspaces."""

Capture: TypeAlias = Callable[[Work], Work]
"""Records work; returns a function that runs it again, on the same tensors. It returns what the
next run, of whatever work was recorded, may overwrite: rows of one width, and no more than the
first work recorded. Raises a `RuntimeError` if the work cannot be recorded."""


def call_again(work: Work) -> Work:
    """The `Capture` of devices where launches cost little: records nothing."""
    work()
    return work


def capture_for(device: torch.device) -> Capture:
    """Return the `Capture` for a device.

    CUDA graphs share one memory pool and the rows of one result, as no two of them ever run at a
    time. Results of their own would stay, together several times as large as that of the largest.
    """
    if device.type != "cuda":
        return call_again
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    rows: Tensor | None = None

    def capture(work: Work) -> Work:
        nonlocal rows
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                work()
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # SGLang's threads that move K/V may call CUDA meanwhile.
            with torch.cuda.graph(graph, pool, stream, "thread_local"):
                result = work()
                if rows is None:
                    rows = result
                else:
                    result = rows[: len(result)].copy_(result)
        finally:
            torch.cuda.set_stream(current)  # if the capture fails, torch leaves its stream current
        return partial(_replayed, graph, result, work)

    return capture


def _replayed(graph: torch.cuda.CUDAGraph, result: Tensor, _work: Work) -> Tensor:
    """Replay a graph; it reads the tensors that `_work` keeps alive."""
    graph.replay()
    return result
