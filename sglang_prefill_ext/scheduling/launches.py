"""Launched forwards, and when the device needs the next one; until then requests gather for it.

A forward that is launched at once behind another one only waits there. One that is launched when
that other one is done leaves the device idle while the host prepares it. In between lies the best
time: when the device will be done just as the host is.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.planner import Completion, JobShare
from sglang_prefill_ext.scheduling.prefixed_forward import PrefixedForward

_HOST_MEMORY = 8
"""A launch counts one part in so many in the mean time that the host takes."""

_DEVICE_MEMORY_S = 2.0
"""Half-life in the measured rate: after so many busy seconds a forward counts half."""

_MARGIN = 1.5
"""How many times the mean time of a launch are set aside for the next one. In simulations in which
forwards take 0.7 to 1.3 times as long as predicted, 1.0 leaves the device idle, and from 2.0 on
fewer requests gather."""


class LaunchTime:
    """Measures launches and forwards, without a clock.

    Costs are in token equivalents, see `SchedulingPolicy.cost`. Times are seconds of a clock that
    does not go back.
    """

    def __init__(self) -> None:
        self._host_s = self._free_s = self._recent_s = self._recent_cost = 0.0

    def launched(self, launch_s: float, now_s: float) -> None:
        """Count a launch that began at `launch_s` and is done now."""
        took_s = now_s - launch_s
        self._host_s += (took_s - self._host_s) / (_HOST_MEMORY if self._host_s else 1)

    def collected(self, cost: int, launch_s: float, now_s: float) -> float:
        """Count the oldest forward in flight, which is done now; return how long it took.

        It began with its launch, or when the forward before it was done.
        """
        busy_s = now_s - max(launch_s, self._free_s)
        kept = 0.5 ** (busy_s / _DEVICE_MEMORY_S)
        self._recent_cost = kept * self._recent_cost + cost
        self._recent_s = kept * self._recent_s + busy_s
        self._free_s = now_s
        return busy_s

    def is_early(self, cost: int, launch_s: float, now_s: float) -> bool:
        """Whether the device will be busy for longer than the next launch takes.

        False until a forward was collected.

        Args:
            cost: of all forwards in flight.
            launch_s: when the launch of the oldest of them began.
        """
        if not self._recent_cost:
            return False
        end_s = max(launch_s, self._free_s) + cost * self._recent_s / self._recent_cost
        return end_s - now_s > _MARGIN * self._host_s


@dataclass(frozen=True, slots=True)
class LaunchedJob:
    """A job's part in a launched forward."""

    job: Job
    attempt: int
    share: JobShare

    @property
    def waits(self) -> bool:
        """Whether the job still waits for this forward: it has not ended or started over."""
        return not self.job.ended and self.job.attempt == self.attempt


@dataclass(frozen=True, slots=True)
class LaunchedForward:
    """A launched forward that is not collected yet.

    Attributes:
        launch_s: monotonic time.
        cost: see `SchedulingPolicy.cost`.
    """

    launched_jobs: list[LaunchedJob]
    completion: Completion
    launch_s: float
    prefixed: PrefixedForward
    cost: int

    @property
    def jobs(self) -> list[Job]:
        return [each.job for each in self.launched_jobs]
