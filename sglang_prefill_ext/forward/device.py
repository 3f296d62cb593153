"""Run work on another CUDA stream, and decide whether forwards can go on after a failed one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import torch
from torch.distributed import DistError


class OneRankError(RuntimeError):
    """A device has not done what it usually does, such as replay a graph; those of others may."""


OF_ONE_RANK = (MemoryError, torch.OutOfMemoryError, DistError, OneRankError)
"""Errors that may occur on one tensor-parallel rank and not on the others."""


def require_usable(device: torch.device, ranks: int, error: Exception) -> None:
    """Return if another forward can follow one that has failed with `error`; else raise.

    Two kinds of failure end the scheduler. After a CUDA error such as an illegal address, every
    later call to the device fails, those of stock forwards, too. And if one rank has failed alone,
    the other ranks wait for it in a collective operation; its next forward would join that
    operation with tensors of another size. As the others wait, they cannot be asked whether they
    have failed.

    Args:
        ranks: how many ranks compute a forward together. Errors that are not `OF_ONE_RANK` occur on
            all of them at the same place, as all compute the same.

    Raises:
        Exception: `error` if it may be one rank's own, or the error of a broken device.
    """
    if ranks > 1 and isinstance(error, OF_ONE_RANK):
        raise error
    if device.type == "cuda":
        with suppress(torch.OutOfMemoryError):  # its cause ended with the failed forward
            torch.cuda.synchronize(device)


@contextmanager
def in_order(stream: AbstractContextManager[object]) -> Iterator[None]:
    """Run the body on another stream, after all work that the current stream has.

    If the body fails, later work of the current stream runs after the kernels that the body has
    launched. A failed forward is never waited for, and its tensors that belong to the current
    stream are freed at once. Their memory must not be reused before those kernels have read it.

    Args:
        stream: a context manager that makes the other stream current.
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
