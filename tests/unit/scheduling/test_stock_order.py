"""The order of stock prefills; a brute-force simulation of SGLang's batches checks its bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.scheduling.stock_order import (
    MATCHED_PER_PASS,
    Prompt,
    chunk_limit,
    to_match,
)

BUDGET = 8


def test_short_prompts_come_first_until_the_long_one_has_aged() -> None:
    long = Prompt(mark=0, tokens=100, cached_tokens=0).key(ageing=2)
    assert Prompt(mark=179, tokens=10, cached_tokens=0).key(ageing=2) < long
    assert Prompt(mark=181, tokens=10, cached_tokens=0).key(ageing=2) > long


def test_only_uncached_tokens_count_and_the_last_is_never_cached() -> None:
    assert Prompt(mark=5, tokens=100, cached_tokens=90).key(ageing=3) == 5 + 3 * 10
    assert Prompt(mark=5, tokens=100, cached_tokens=100).key(ageing=3) == 5 + 3 * 1


@pytest.mark.parametrize("waiting", [0, 1, MATCHED_PER_PASS, MATCHED_PER_PASS + 3])
def test_the_head_and_new_requests_are_matched(waiting: int) -> None:
    queue = list(range(waiting))
    new = {1, waiting - 1}
    chosen = to_match(queue, lambda request: request in new)
    assert chosen == [r for r in queue if r < MATCHED_PER_PASS or r in new]


@pytest.mark.parametrize(
    ("waiting", "budget", "page_size", "limit"),
    [
        ([], 64, 1, None),
        ([10, 10], 64, 1, 44),
        ([10, 10, 500, 1], 64, 1, 44),  # in order: what is behind a longer one gets nothing
        ([20, 20], 64, 1, 44),  # never more than half
        ([32], 64, 1, 32),
        ([40], 64, 1, None),
        ([10], 64, 16, 48),  # whole pages on both sides
        ([10], 60, 16, 32),
        ([1], 20, 16, None),
        ([1], 1, 1, None),
        ([1], 0, 1, None),
    ],
)
def test_a_begun_prompt_leaves_room(
    waiting: list[int], budget: int, page_size: int, limit: int | None
) -> None:
    begun = Prompt(mark=0, tokens=300, cached_tokens=100)
    prompts = [Prompt(mark=100, tokens=tokens, cached_tokens=0) for tokens in waiting]
    assert chunk_limit(begun, prompts, budget, page_size, ageing=2) == limit


def test_a_begun_prompt_leaves_no_room_once_it_has_aged() -> None:
    begun = Prompt(mark=0, tokens=300, cached_tokens=100)
    late = Prompt(mark=2 * 200, tokens=1, cached_tokens=0)
    assert chunk_limit(begun, [late], 64, 1, ageing=2) is None


@dataclass(eq=False)
class Request:
    mark: int
    tokens: int
    cached: int = 0
    finished_after: int | None = None
    """Tokens computed, since it came, before its last batch started."""

    @property
    def prompt(self) -> Prompt:
        return Prompt(self.mark, self.tokens, self.cached)


@dataclass
class Stock:
    """SGLang's batches: the begun prompt first, then the queue until something does not fit."""

    ageing: int
    cached_of: Callable[[Request], int]
    """The cached tokens of a request at each call; they may grow and shrink between calls."""
    page_size: int = 1
    processed: int = 0
    largest_queue: int = 0
    begun: Request | None = None
    queue: list[Request] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def arrive(self, tokens: int) -> Request:
        request = Request(self.processed, tokens)
        self.queue.append(request)
        self.requests.append(request)
        return request

    def step(self) -> None:
        queued = [*self.queue, *([self.begun] if self.begun else [])]
        self.largest_queue = max(self.largest_queue, sum(map(self._paged, queued)))
        for request in to_match(self.queue, lambda request: request.cached == 0):
            request.cached = self.cached_of(request)
        self.queue.sort(key=lambda request: request.prompt.key(self.ageing))
        self.processed += BUDGET - self._fill(self._continue_begun())

    def run(self, arrivals: Iterable[Iterable[int]]) -> None:
        """Let prompts of these lengths arrive before each batch, then finish."""
        for lengths in arrivals:
            for tokens in lengths:
                self.arrive(tokens)
            self.step()
        while self.queue or self.begun:
            self.step()

    def bound(self, request: Request, ageing: int) -> int:
        return ageing * request.tokens + BUDGET + self.largest_queue

    def _paged(self, request: Request) -> int:
        return -(-request.tokens // self.page_size) * self.page_size

    def _continue_begun(self) -> int:
        """Return what is left of the budget."""
        if self.begun is None:
            return BUDGET
        prompts = [request.prompt for request in self.queue]
        limit = chunk_limit(self.begun.prompt, prompts, BUDGET, self.page_size, self.ageing)
        return BUDGET - self._compute(self.begun, limit or BUDGET)

    def _fill(self, room: int) -> int:
        while room and self.queue:
            request = self.queue[0]
            request.cached = self.cached_of(request)
            if request.prompt.remaining_tokens > room and (self.begun or room < self.page_size):
                break
            room -= self._compute(self.queue.pop(0), room)
        return room

    def _compute(self, request: Request, room: int) -> int:
        remaining = request.prompt.remaining_tokens
        if remaining <= room:
            request.finished_after = self.processed - request.mark
            self.begun = None if request is self.begun else self.begun
            return remaining
        chunk = room // self.page_size * self.page_size
        request.cached = request.tokens - remaining + chunk
        self.begun = request
        return chunk


@given(
    st.integers(1, 4),
    st.sampled_from([1, 2, 4]),
    st.lists(st.lists(st.integers(1, 40), max_size=4), max_size=25),
    st.randoms(use_true_random=False),
)
def test_no_prompt_waits_longer_than_the_bound(
    ageing: int, page_size: int, arrivals: list[list[int]], rng: Random
) -> None:
    stock = Stock(ageing, lambda r: rng.randrange(r.tokens), page_size)
    stock.run(arrivals)
    assert len(stock.requests) == sum(map(len, arrivals))
    for request in stock.requests:
        assert request.finished_after is not None
        assert request.finished_after < stock.bound(request, ageing)


def _wait_of_a_long_prompt(ageing: int) -> tuple[Stock, Request]:
    """A long prompt, and short ones that come as fast as they are served, for ever."""
    stock = Stock(ageing, cached_of=lambda request: 0)
    long = stock.arrive(50)
    stock.run([[BUDGET // 2] * 4, *[[BUDGET // 2] * 2] * 100])
    return stock, long


@pytest.mark.parametrize("ageing", [1, 2, 5])
def test_short_prompts_overtake_until_the_bound(ageing: int) -> None:
    stock, long = _wait_of_a_long_prompt(ageing)
    assert long.finished_after is not None
    assert ageing * (50 - BUDGET) <= long.finished_after < stock.bound(long, ageing)


def test_shortest_first_without_ageing_starves_a_long_prompt() -> None:
    stock, long = _wait_of_a_long_prompt(ageing=10**9)
    assert long.finished_after is not None
    assert long.finished_after >= stock.bound(long, ageing=5)
