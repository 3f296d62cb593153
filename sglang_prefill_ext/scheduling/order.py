"""In which order waiting jobs are served; pure, without a clock.

Time is counted in *processed tokens*, the tokens of all forwards launched so far. A job's key
hangs on nothing that changes while it waits, so a queue that is sorted once stays sorted.

**srpt**, shortest remaining processing time first, with ageing. With ``mark`` the tokens that were
processed when the job came, ``r`` the tokens that it still needs, without those that the prefix
cache had then, and ``w`` the ageing::

    key = mark + w * r

It is the point by which a job that is slowed down `w` times would be done: small jobs overtake
large ones, and the older a job, the smaller others must be to overtake it still.

*Bound.* Let ``L`` be the most tokens that ever wait (the queue's limit) and ``B`` the tokens of the
largest forward. A job's last forward starts before ``w * r + B + L`` further tokens are processed.
Where requests name adapters, of which ``a`` have jobs that wait, it is ``w * r + a * B + L``.
Proof: once ``mark + w * r`` tokens are processed, which one forward can overshoot by less than
``B``, every job that comes later has a larger key and is launched behind, as forwards take jobs in
order and stop at the first that does not fit. All that can still run before are the jobs that wait
at that moment, ``L`` tokens at most, this job's among them. A forward passes over jobs with another
adapter than its first one's and so may take some from behind this job, but only once all before it
with that adapter are chosen: one forward an adapter, ``B`` tokens each. First come, first served
waits up to ``L``, so `w` times its own length is the price that a long job pays at most.

Failed forwards are not counted; their jobs are computed again, each once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeAlias

from sglang_prefill_ext.config import Order

OrderKey: TypeAlias = tuple[float, ...]
"""Jobs with a smaller key are served first, among equals the one that came first."""


class Waiting(Protocol):
    """What an order may look at."""

    @property
    def mark(self) -> int:
        """Tokens that were processed when the job came."""
        ...

    @property
    def remaining_tokens(self) -> int:
        """Tokens that are still to be computed, >= 1; without cached ones."""
        ...

    @property
    def priority(self) -> int:
        """Higher is served first."""
        ...

    @property
    def deadline_ms(self) -> float | None:
        """Unix time in ms."""
        ...


def order_key(order: Order, ageing: int) -> Callable[[Waiting], OrderKey]:
    """Return the key of an order.

    Args:
        ageing: `w`, in tokens a token, >= 1; higher is better for small jobs and worse for large
            ones. Without effect on fcfs.
    """

    def srpt(job: Waiting) -> float:
        return job.mark + ageing * job.remaining_tokens

    keys: dict[Order, Callable[[Waiting], OrderKey]] = {
        Order.SRPT: lambda job: (srpt(job),),
        Order.FCFS: lambda job: (),
        Order.PRIORITY: lambda job: (-job.priority, srpt(job)),
        Order.DEADLINE: lambda job: (
            math.inf if job.deadline_ms is None else job.deadline_ms,
            srpt(job),
        ),
    }
    return keys[order]
