"""Work on another CUDA stream, in order with that of the current one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


@contextmanager
def in_order(stream: AbstractContextManager[object]) -> Iterator[None]:
    """Run the body on a stream, behind all that the current one has been given.

    If the body fails, whatever the current stream is given next runs behind what the body has
    launched. Nobody waits for a forward that failed, so its tensors of the current stream are free
    at once, and their memory must not change before they were read.

    Args:
        stream: makes another stream the current one.
    """
    outside = torch.cuda.current_stream()
    with stream:
        inside = torch.cuda.current_stream()
        inside.wait_stream(outside)
        try:
            yield
        except Exception:
            outside.wait_stream(inside)
            raise
