"""Variants of scheduling to compare, some with orders that the server does not offer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from sglang_prefill_ext.config import Order, PrefillOnlyConfig
from sglang_prefill_ext.scheduling.budget import UNLIMITED, ForwardBudget, QueueLoad
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy
from sglang_prefill_ext.scheduling.queue import JobQueue

DEFAULTS = PrefillOnlyConfig()


class OtherOrder(StrEnum):
    """Orders of stock SGLang's ``--schedule-policy``."""

    LPM = "lpm"  # longest cached prefix first
    HRRN = "hrrn"  # highest response ratio next


@dataclass(frozen=True, slots=True)
class LongestPrefixFirst(SchedulingPolicy):
    """Most cached tokens first, as counted on arrival; first come first served among equals.

    SGLang counts them again in every pass, and drops this order if more than 128 requests wait.
    """

    def new_queue(self) -> JobQueue:
        return JobQueue(lambda job: (-job.cached_tokens,))


class ResponseRatioQueue(JobQueue):
    """Highest response ratio next, (wait + service) / service; arrival decides among equals.

    The ratio of each job grows at a different rate, so no constant key gives the order. The jobs
    are sorted at every access.

    Args:
        processed_tokens: returns the time, which is measured in processed tokens here.
    """

    def __init__(self, processed_tokens: Callable[[], int]) -> None:
        super().__init__(lambda job: ())
        self._processed_tokens = processed_tokens

    def __iter__(self) -> Iterator[Job]:
        now = self._processed_tokens()

        def ratio(job: Job) -> float:
            return (now - job.mark) / job.remaining_tokens + 1

        return iter(sorted(super().__iter__(), key=ratio, reverse=True))


@dataclass(frozen=True, slots=True)
class HighestResponseRatio(SchedulingPolicy):
    """Serves from a `ResponseRatioQueue`."""

    processed_tokens: Callable[[], int]

    def new_queue(self) -> JobQueue:
        return ResponseRatioQueue(self.processed_tokens)


@dataclass(frozen=True, slots=True)
class Variant:
    """A way of scheduling; if `launch_tokens` is None, the cost model's value is used."""

    name: str
    order: Order | OtherOrder
    ageing: int = DEFAULTS.ageing
    launch_tokens: int | None = None

    def policy(self, processed_tokens: Callable[[], int], measured_launch: int) -> SchedulingPolicy:
        """Return the policy; it rejects nothing.

        Args:
            processed_tokens: returns the tokens of all forwards launched so far.
            measured_launch: cost of launching a forward, in tokens.
        """
        launch_tokens = measured_launch if self.launch_tokens is None else self.launch_tokens
        budget = ForwardBudget(DEFAULTS.max_forward_tokens)
        limits = QueueLoad(UNLIMITED, UNLIMITED, UNLIMITED)
        order = self.order if isinstance(self.order, Order) else Order.FCFS
        settings = (budget, order, self.ageing, launch_tokens, limits)
        match self.order:
            case OtherOrder.LPM:
                return LongestPrefixFirst(*settings)
            case OtherOrder.HRRN:
                return HighestResponseRatio(*settings, processed_tokens)
            case _:
                return SchedulingPolicy(*settings)


ALONE = Variant("fcfs, one a forward", Order.FCFS, launch_tokens=0)
SHARED = Variant("fcfs", Order.FCFS)
VARIANTS = (
    ALONE,
    SHARED,
    Variant("lpm", OtherOrder.LPM),
    Variant("hrrn", OtherOrder.HRRN),
    *(Variant(f"srpt, ageing {w}", Order.SRPT, ageing=w) for w in (1, 2, 5, 20)),
    Variant("priority, short first", Order.PRIORITY),
)
