"""Count the rows of each expert on the device, and copy the counts to the host asynchronously."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LAUNCHES_A_LAYER = 3
"""Kernels that `ExpertCounts.count` launches; `begin` and `send` launch one each."""


class ExpertCounts:
    """The counts of one forward at a time. Nothing here waits for the device.

    Args:
        layers, experts: of the model, on this device.
        device: the one that holds the expert ids.
    """

    def __init__(self, layers: int, experts: int, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        shape = (layers, experts + 1)  # the first column is for experts of other devices
        self._counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self._host = torch.zeros(shape, dtype=torch.int32, pin_memory=on_cuda)
        self._ones = torch.ones(0, dtype=torch.int32, device=device)
        self._sent: Any = torch.cuda.Event() if on_cuda else None  # type: ignore[no-untyped-call]
        self._most = experts

    def begin(self) -> None:
        """Set the counts to 0 for a new forward."""
        self._counts.zero_()

    def count(self, layer: int, topk_ids: Tensor) -> None:
        """Count the rows of one layer.

        Args:
            topk_ids: ``[tokens, top_k]``, int32 or int64; -1 is an expert of another device.
        """
        column = topk_ids.reshape(-1).add(1).clamp_(0, self._most)
        if len(column) > len(self._ones):
            self._ones = torch.ones(len(column), dtype=torch.int32, device=column.device)
        self._counts[layer].index_add_(0, column, self._ones[: len(column)])

    def send(self) -> None:
        """End the forward: start the copy of its counts to the host."""
        self._host.copy_(self._counts, non_blocking=True)
        if self._sent is not None:
            self._sent.record()

    def arrived(self) -> NDArray[np.int32] | None:
        """The counts that were sent, ``[layers, experts]``; None while the copy is under way."""
        if self._sent is not None and not self._sent.query():
            return None
        return self._host[:, 1:].numpy().copy()
