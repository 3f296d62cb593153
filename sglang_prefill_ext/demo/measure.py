"""What the demonstration measures: one ranking by both paths, and items per second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from sglang_prefill_ext.demo.client import PATHS, Cost, Path, ScoringClient

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


@dataclass(frozen=True, slots=True)
class Throughput:
    """Items per second of both paths, in windows that took turns.

    Attributes:
        per_s: of each window, by path; as many for either.
    """

    per_s: dict[Path, list[float]]

    @property
    def ratios(self) -> list[float]:
        """The packed path's over the stock path's, of windows next to each other."""
        return [a / b for a, b in zip(self.per_s["packed"], self.per_s["stock"], strict=True)]


def rank_by_both(
    client: ScoringClient, request: Request, others: Sequence[Request]
) -> dict[Path, Ranking]:
    """Rank one request by either path, and time both in turn on `others`.

    Other queries, so that nothing is served from a cache; in turn, so that a busy moment of the
    machine meets both.
    """
    answers: dict[Path, tuple[list[float], Cost]] = {}
    for path in PATHS:
        before = client.cost(path)
        scores, _ = client.score(path, *request)
        answers[path] = scores, client.cost(path).since(before)
    times: dict[Path, list[float]] = {path: [] for path in PATHS}
    for other in others[:_REPEATS]:
        for path in PATHS:
            times[path].append(client.score(path, *other)[1])
    return {
        path: Ranking(scores, statistics.median(times[path]) * 1e3, cost)
        for path, (scores, cost) in answers.items()
    }


def measure_throughput(
    connect: Connect, requests: Sequence[Request], clients: int, turns: int, seconds: float
) -> Throughput:
    """Load either path in turn, `turns` times for so many seconds each."""
    seen = Throughput({path: [] for path in PATHS})
    for _ in range(turns):
        for path in PATHS:
            seen.per_s[path].append(items_per_second(connect, path, requests, clients, seconds))
    return seen


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
