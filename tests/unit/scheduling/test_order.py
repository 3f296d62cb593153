"""Orders, and their bound on waiting, under random and adversarial arrivals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import Order
from sglang_prefill_ext.scheduling.budget import ForwardBudget, QueueLoad
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy
from sglang_prefill_ext.scheduling.queue import order_key
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from sglang_prefill_ext.wire.status import Status
from tests.unit.scheduling.jobs import IdleExecutor, job_of, request
from tests.unit.wire.strategies import PlainRequest, plain_requests

BUDGET = 8


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (Order.FCFS, "abcd"),
        (Order.SRPT, "bdca"),
        (Order.PRIORITY, "cbda"),
        (Order.DEADLINE, "dbca"),
    ],
)
def test_orders(order: Order, expected: str) -> None:
    jobs = {
        "a": job_of(request(range(9)), mark=0),  # srpt key 0 + 2 * 10
        "b": job_of(request(range(2)), mark=5),  # 5 + 2 * 3
        "c": job_of(request(range(2)), mark=9, priority=1),
        "d": job_of(request(range(2)), mark=7, deadline_ms=1e12),
    }
    key = order_key(order, ageing=2)
    by_key = sorted(jobs, key=lambda name: (key(jobs[name]), jobs[name].number))
    assert "".join(by_key) == expected


def test_a_job_under_way_needs_fewer_tokens_and_comes_sooner() -> None:
    key = order_key(Order.SRPT, ageing=3)
    job = job_of(request(range(9)), budget=5, mark=100)
    before = key(job)
    job.next_piece = 1
    assert before == (100 + 3 * 10,)
    assert key(job) == (100 + 3 * 5,)


@dataclass
class Watched:
    """A runtime that notes how many tokens are processed before a job's last forward starts."""

    ageing: int
    launch_tokens: int
    most_adapters: int = 1
    longest_queue: int = 0
    largest_forward: int = 0
    adapters: set[str] = field(default_factory=set)
    waits: list[tuple[int, int]] = field(default_factory=list)
    """Tokens of each answered job, and tokens that it waited for."""

    def __post_init__(self) -> None:
        policy = SchedulingPolicy(
            ForwardBudget(BUDGET),
            Order.SRPT,
            self.ageing,
            self.launch_tokens,
            QueueLoad(tokens=10**9, rows=10**9, bytes=10**9),
            adapters_fit=lambda names: len(names) <= self.most_adapters,
        )
        self.runtime = PackedRuntime(IdleExecutor(self._on_launch), self._on_answer, policy)
        self._last_forward = 0

    def _on_launch(self, plan: ForwardPlan) -> None:
        self._last_forward = plan.num_tokens
        self.largest_forward = max(self.largest_forward, plan.num_tokens)

    def _on_answer(self, ended: Sequence[Ended]) -> None:
        started = self.runtime.stats.tokens_computed - self._last_forward
        for job, result in ended:
            assert result.status is Status.OK
            tokens = sum(piece.num_tokens for piece in job.pieces)
            self.waits.append((tokens, started - job.mark))

    def submit(self, plain: PlainRequest) -> None:
        self.adapters.add(plain.adapter)
        self.runtime.submit("job", plain.pack(), None)
        self.longest_queue = max(self.longest_queue, self.runtime.queue.load.tokens)

    def run(self, arrivals: Iterable[list[PlainRequest]]) -> None:
        """Let a list of requests arrive before each forward, then finish."""
        for requests in arrivals:
            for plain in requests:
                self.submit(plain)
            self.runtime.step()
        while self.runtime.busy:
            self.runtime.step()

    def bound(self, tokens: int, ageing: int) -> int:
        forwards = len(self.adapters) * self.largest_forward
        return ageing * tokens + forwards + self.longest_queue


REQUESTS = st.builds(
    lambda plain, adapter: replace(plain, adapter=adapter),
    plain_requests(max_prefix=20, max_suffix=BUDGET, max_rows=4),
    st.sampled_from(["", "", "a", "b"]),
)


@given(
    st.integers(1, 4),
    st.sampled_from([0, 4, 10**6]),
    st.integers(1, 3),
    st.lists(st.lists(REQUESTS, max_size=5), max_size=20),
)
def test_no_job_waits_longer_than_the_bound(
    ageing: int, launch_tokens: int, most_adapters: int, arrivals: list[list[PlainRequest]]
) -> None:
    watched = Watched(ageing, launch_tokens, most_adapters)
    watched.run(arrivals)
    assert len(watched.waits) == sum(map(len, arrivals))
    for tokens, waited in watched.waits:
        assert waited < watched.bound(tokens, ageing)


@pytest.mark.parametrize("launch_tokens", [0, 4, 10**6])
def test_a_stream_of_one_adapter_does_not_starve_another(launch_tokens: int) -> None:
    stream = replace(request([], [1]), adapter="stream")
    watched = Watched(ageing=2, launch_tokens=launch_tokens)
    watched.run([[stream] * 3, [request([], range(5)), *[stream] * 3], *[[stream] * 3] * 100])
    (waited,) = (waited for tokens, waited in watched.waits if tokens == 5)
    assert waited < watched.runtime.stats.tokens_computed / 4


def test_a_later_large_request_with_another_adapter_does_not_begin_first() -> None:
    small, large = request([], range(BUDGET)), request([], *[range(i, i + 7) for i in range(80)])
    first = replace(request([], range(7), range(1, 8)), adapter="first")
    watched = Watched(ageing=1, launch_tokens=10**6)
    # The request of one token comes right before the first large one, and has room in its forward.
    watched.run([[*[small] * 100, first], [request()], *[[]] * 98, [large]])
    (waited,) = (waited for tokens, waited in watched.waits if tokens == 14)
    assert waited < watched.bound(14, ageing=1)


def _flood(rounds: int) -> list[list[PlainRequest]]:
    """A large request, and small ones that come as fast as they are served, for ever."""
    small = request([], [1])
    large = request([], range(BUDGET))
    return [[large, small], *[[small]] * rounds]


def _wait_of_the_large(ageing: int, measure: Callable[[Watched], int]) -> int:
    watched = Watched(ageing, launch_tokens=0)
    watched.run(_flood(rounds=200))
    return measure(watched)


@pytest.mark.parametrize("ageing", [1, 2, 5, 20])
def test_the_bound_is_nearly_reached(ageing: int) -> None:
    def waited(watched: Watched) -> int:
        (wait,) = (waited for tokens, waited in watched.waits if tokens == BUDGET)
        assert wait < watched.bound(BUDGET, ageing)
        return wait

    # Small jobs of one token overtake until their own age weight is used up.
    assert _wait_of_the_large(ageing, waited) >= ageing * (BUDGET - 1)


def test_too_little_ageing_breaks_the_bound_of_more() -> None:
    def exceeds(watched: Watched) -> int:
        return sum(waited >= watched.bound(tokens, ageing=2) for tokens, waited in watched.waits)

    assert _wait_of_the_large(2, exceeds) == 0
    assert _wait_of_the_large(50, exceeds) == 1
