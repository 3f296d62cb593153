"""Launched forwards, and what the runtime needs of whoever computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.planner import ForwardPlan, Share
from sglang_prefill_ext.scheduling.prefixed_forward import PrefixedForward
from sglang_prefill_ext.wire.packed import Float32Array


class Completion(Protocol):
    """A launched forward. On a GPU it runs on after `Executor.launch` has returned."""

    def wait(self) -> Float32Array:
        """Block until the forward is done; return its label values, float32, row by row."""
        ...


class Executor(Protocol):
    """Launches forwards in the order of the calls."""

    @property
    def asynchronous(self) -> bool:
        """Whether `launch` returns before the forward is done; the same on every rank."""
        ...

    @property
    def causal(self) -> bool:
        """Whether prompts can share a prefix, because its tokens do not see what follows."""
        ...

    def launch(
        self,
        plan: ForwardPlan,
        held: Sequence[Any],
        stores: Sequence[Any],
    ) -> Completion:
        """Launch a forward.

        Args:
            held, stores: see `PrefixedForward`.
        """
        ...


@dataclass(frozen=True, slots=True)
class LaunchedJob:
    """A job's part in a launched forward."""

    job: Job
    attempt: int
    share: Share

    @property
    def waits(self) -> bool:
        """Whether the job still waits for this forward."""
        return not self.job.ended and self.job.attempt == self.attempt


@dataclass(frozen=True, slots=True)
class LaunchedForward:
    """A launched forward that was not collected yet; `launch_s` is monotonic time."""

    launched_jobs: list[LaunchedJob]
    completion: Completion
    launch_s: float
    prefixed: PrefixedForward

    @property
    def jobs(self) -> list[Job]:
        return [each.job for each in self.launched_jobs]
