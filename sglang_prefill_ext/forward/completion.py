"""The end of a forward: its values reach the host, later on a GPU, at once on a CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sglang_prefill_ext.wire.packed import Float32Array


class ForwardCompletion:
    """The values of a forward on their way to the host.

    On CUDA the copy is asynchronous, into pinned memory, and an event marks its end; the
    device tensors stay referenced until then.
    """

    def __init__(self, values: Tensor) -> None:
        self._device_values = values
        self._event: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._values = values

    def wait(self) -> Float32Array:
        """Block until the values are on the host; return them, float32 ``[n]``."""
        if self._event is not None:
            self._event.synchronize()
        values: Float32Array = self._values.numpy().astype(np.float32, copy=False)
        return values
