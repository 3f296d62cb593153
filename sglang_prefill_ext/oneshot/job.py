"""A packed request on the scheduler's side, from its arrival to its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sglang_prefill_ext.oneshot.planner import ForwardPlan
from sglang_prefill_ext.wire.packed import Float32Array, PackedRows


class JobStatus(StrEnum):
    """How a job ended."""

    OK = "ok"
    ABORTED = "aborted"  # the client left, or an operator aborted it
    DECLINED = "declined"  # this model or server cannot pack it; the stock path can serve it
    FAILED = "failed"  # its forward raised; only this job is affected


@dataclass(frozen=True, slots=True)
class JobResult:
    """The answer to one job. `values` is set (float32 bytes) if `status` is OK, else `message`."""

    rid: str
    status: JobStatus
    message: str = ""
    values: bytes = b""
    forwards: int = 0
    tokens_computed: int = 0
    queue_ms: float = 0.0
    compute_ms: float = 0.0


@dataclass(slots=True, eq=False)
class Job:
    """One packed request and its progress.

    Attributes:
        rid: request id, unique among the requests in flight.
        rows: what to compute.
        plans: forwards of the request in order; `next_plan` of them were launched.
        arrival_s: monotonic time of arrival, for reporting only, never for a decision.
        reply_to: opaque return route of the transport.
        held: the executor's handle on the K/V of the prefix between two forwards.
        values: label values of the forwards that have completed, in order.
    """

    rid: str
    rows: PackedRows
    plans: Sequence[ForwardPlan]
    arrival_s: float
    reply_to: Any = None
    next_plan: int = 0
    start_s: float | None = None
    held: Any = None
    values: list[Float32Array] = field(default_factory=list)
    ended: bool = False

    def restart(self) -> None:
        """Forget what earlier forwards of the job left."""
        self.next_plan = 0
        self.held = None
        self.values.clear()

    @property
    def launched(self) -> bool:
        """Whether every forward of the job was launched."""
        return self.next_plan == len(self.plans)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that are still to be computed."""
        return sum(plan.layout.num_tokens for plan in self.plans[self.next_plan :])
