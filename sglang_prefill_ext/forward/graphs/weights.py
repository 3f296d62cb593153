"""Notice when weights are no longer where captured graphs read them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch

from sglang_prefill_ext.forward.executor import PackedExecutor


def look_at_weights(model: torch.nn.Module, executor: PackedExecutor) -> Callable[[], None]:
    """Return a function that ends replays if the address of any weight has changed since this call.

    Graphs read weights at the addresses of their capture. SGLang mostly overwrites weights in
    place, but allocates some anew, such as those that it quantises.
    """

    def places() -> list[int]:
        return [each.data_ptr() for each in chain(model.parameters(), model.buffers())]

    captured = places()

    def look() -> None:
        if places() != captured:
            executor.stop_replays("an update has put weights elsewhere in memory")

    return look
