"""What the demonstration measures: one ranking by both paths, and items per second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from sglang_prefill_ext.demo.client import Cost, Path, ScoringClient

_REPEATS = 7

Request: TypeAlias = tuple[str, list[str]]
"""A query and its items, as text."""

Connect: TypeAlias = Callable[[], ScoringClient]


@dataclass(frozen=True, slots=True)
class Ranking:
    """One path's answer to one request.

    Attributes:
        scores: probability of the relevant label, one an item.
        latency_ms: median over repeats with other queries, in milliseconds.
        cost: of answering this request once.
    """

    scores: list[float]
    latency_ms: float
    cost: Cost

    @property
    def order(self) -> list[int]:
        """Item numbers, best first; equal scores keep the order of the items."""
        return sorted(range(len(self.scores)), key=lambda item: -self.scores[item])


def rank(client: ScoringClient, path: Path, request: Request, others: list[Request]) -> Ranking:
    """Rank one request and time the path on `others`, so that nothing is served from a cache."""
    before = client.cost(path)
    scores, _ = client.score(path, *request)
    cost = client.cost(path).since(before)
    times = [client.score(path, *other)[1] for other in others[:_REPEATS]]
    return Ranking(scores, statistics.median(times) * 1e3, cost)


def items_per_second(
    connect: Connect, path: Path, requests: Sequence[Request], clients: int, seconds: float
) -> float:
    """Closed loop: `clients` connections, each sends its next request when it has an answer."""
    stop_at = time.perf_counter() + seconds

    def work(worker: int) -> int:
        done = 0
        with connect() as client:
            turn = worker
            while time.perf_counter() < stop_at:
                query, items = requests[turn % len(requests)]
                client.score(path, query, items)
                done += len(items)
                turn += clients
        return done

    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        items = sum(pool.map(work, range(clients)))
    return items / (time.perf_counter() - start)
