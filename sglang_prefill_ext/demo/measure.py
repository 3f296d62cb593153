"""What the demonstration measures: a ranking by both paths, its cost, and items per second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

import httpx
from prometheus_client.parser import text_string_to_metric_families

from sglang_prefill_ext.client.options import Options

Path = Literal["packed", "stock"]
PATHS: tuple[Path, ...] = ("packed", "stock")

_STOCK_HEADERS = Options(stock=True).headers(left_s=None)


@dataclass(frozen=True, slots=True)
class Cost:
    """What requests cost the server since it started.

    Attributes:
        tokens: prompt tokens that went through the model.
        messages: requests that the scheduler handled, each with its own bookkeeping.
    """

    tokens: int
    messages: int

    def since(self, before: Cost) -> Cost:
        return Cost(self.tokens - before.tokens, self.messages - before.messages)


class ScoringClient:
    """Scores items for a query; one connection, not to be shared between threads."""

    def __init__(self, base_url: str, label_ids: Sequence[int]) -> None:
        # The server drops connections that were idle for 5 s: ours are gone before.
        limits = httpx.Limits(keepalive_expiry=3.0)
        self._http = httpx.Client(base_url=base_url, timeout=120.0, limits=limits)
        self._label_ids = list(label_ids)

    def __enter__(self) -> ScoringClient:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._http.close()

    def score(self, path: Path, query: str, items: Sequence[str]) -> tuple[list[float], float]:
        """Return the probability of the first label for each item, and the seconds it took.

        Raises:
            httpx.HTTPStatusError: the server refused or failed.
        """
        body = {
            "query": query,
            "items": list(items),
            "label_token_ids": self._label_ids,
            "apply_softmax": True,
        }
        start = time.perf_counter()
        reply = self._http.post(
            "/v1/score", json=body, headers=_STOCK_HEADERS if path == "stock" else None
        )
        seconds = time.perf_counter() - start
        return [row[0] for row in reply.raise_for_status().json()["scores"]], seconds

    def cost(self, path: Path) -> Cost:
        """Read the server's own counters of one path."""
        if path == "packed":
            counters = self._page("/prefill_only/status").json()["frontend"]["counters"]
            return Cost(counters["tokens_computed"], counters["requests"].get("packed", 0))
        totals = {  # of every counter family, over its labels
            family.name: sum(s.value for s in family.samples if s.name.endswith("_total"))
            for family in text_string_to_metric_families(self._page("/metrics").text)
            if family.type == "counter"
        }
        computed = totals["sglang:prompt_tokens"] - totals.get("sglang:cached_tokens", 0.0)
        return Cost(int(computed), int(totals["sglang:num_requests"]))

    def _page(self, path: str) -> httpx.Response:
        return self._http.get(path).raise_for_status()


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
