"""Work on another CUDA stream, and whether forwards can go on after one that has failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import torch
from torch.distributed import DistError

OF_ONE_RANK = (MemoryError, torch.OutOfMemoryError, DistError)
"""What may strike one tensor-parallel rank and spare the others."""


def require_usable(device: torch.device, ranks: int, error: Exception) -> None:
    """Return if another forward can follow one that has failed with `error`.

    An illegal address and its kin stay: whatever the process asks of the device afterwards fails,
    as SGLang's own forwards do, whose scheduler then ends. And a rank that failed alone has left
    the others in an exchange that it does not come to; its next forward would meet them there with
    tensors of another size. Which ranks have failed cannot be asked, as the others wait.

    Args:
        ranks: those that compute a forward together. What is not `OF_ONE_RANK` strikes all of
            them at the same place, as they compute the same.

    Raises:
        Exception: `error` where it is one rank's own, or what a broken device answers.
    """
    if ranks > 1 and isinstance(error, OF_ONE_RANK):
        raise error
    if device.type == "cuda":
        with suppress(torch.OutOfMemoryError):  # it is over with what asked for the memory
            torch.cuda.synchronize(device)


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
