"""What the demonstration measures: a ranking by both paths, its cost, and items per second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Literal, TypeAlias

import httpx
from prometheus_client.parser import text_string_to_metric_families

from sglang_prefill_ext.client import Options, PrefillClient

Path = Literal["packed", "stock"]
PATHS: tuple[Path, ...] = ("packed", "stock")

_OPTIONS: dict[Path, Options] = {path: Options(stock=path == "stock") for path in PATHS}

Request: TypeAlias = tuple[str, list[str]]
"""A query and its items, as text."""


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


@dataclass(frozen=True, slots=True)
class Scorer:
    """A scoring server, and the labels to score.

    Attributes:
        label_ids: tokens of the labels, the wanted one first.
    """

    base_url: str
    label_ids: Sequence[int]

    def score(
        self, client: PrefillClient, path: Path, request: Request
    ) -> tuple[list[float], float]:
        """Return the probability of the first label for each item, and the seconds it took.

        Raises:
            PrefillExtError: see `PrefillClient`.
        """
        start = time.perf_counter()
        answer = client.score(*request, self.label_ids, options=_OPTIONS[path])
        seconds = time.perf_counter() - start
        return answer.scores[:, 0].tolist(), seconds

    def cost(self, path: Path) -> Cost:
        """Read the server's own counters of one path."""
        if path == "packed":
            counters = self._page("/prefill_only/status").json()["frontend"]["counters"]
            return Cost(counters["tokens_computed"], counters["requests"].get("packed", 0))
        totals = {  # each counter family, summed over its labels
            family.name: sum(s.value for s in family.samples if s.name.endswith("_total"))
            for family in text_string_to_metric_families(self._page("/metrics").text)
            if family.type == "counter"
        }
        computed = totals["sglang:prompt_tokens"] - totals.get("sglang:cached_tokens", 0.0)
        return Cost(int(computed), int(totals["sglang:num_requests"]))

    def _page(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.base_url}{path}", timeout=60.0).raise_for_status()


_REPEATS = 7


@dataclass(frozen=True, slots=True)
class Ranking:
    """One path's answer to one request.

    Attributes:
        scores: probability of the relevant label, one an item.
        latency_ms: median over repeats with other queries, in milliseconds.
        cost: what the server spent on answering this request once.
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
    """Items per second of both paths, in alternating windows.

    Attributes:
        per_s: path -> items per second of each of its windows; both paths have equally many.
    """

    per_s: dict[Path, list[float]]

    @property
    def ratios(self) -> list[float]:
        """The packed path's rate over the stock path's, for each pair of neighbouring windows."""
        return [a / b for a, b in zip(self.per_s["packed"], self.per_s["stock"], strict=True)]


def rank_by_both(
    scorer: Scorer, request: Request, others: Sequence[Request]
) -> dict[Path, Ranking]:
    """Rank one request on both paths, and time the paths in turn on `others`.

    The timed requests are different ones, so that no cache answers them. The paths take turns, so
    that a busy moment of the machine affects both.
    """
    answers: dict[Path, tuple[list[float], Cost]] = {}
    times: dict[Path, list[float]] = {path: [] for path in PATHS}
    with PrefillClient(scorer.base_url) as client:
        for path in PATHS:
            before = scorer.cost(path)
            scores, _ = scorer.score(client, path, request)
            answers[path] = scores, scorer.cost(path).since(before)
        for other in others[:_REPEATS]:
            for path in PATHS:
                times[path].append(scorer.score(client, path, other)[1])
    return {
        path: Ranking(scores, statistics.median(times[path]) * 1e3, cost)
        for path, (scores, cost) in answers.items()
    }


def measure_throughput(
    scorer: Scorer, requests: Sequence[Request], clients: int, turns: int, seconds: float
) -> Throughput:
    """Load the two paths in turn, each `turns` times for `seconds`."""
    seen = Throughput({path: [] for path in PATHS})
    for _ in range(turns):
        for path in PATHS:
            seen.per_s[path].append(items_per_second(scorer, path, requests, clients, seconds))
    return seen


def items_per_second(
    scorer: Scorer, path: Path, requests: Sequence[Request], clients: int, seconds: float
) -> float:
    """Measure a closed loop: each of `clients` threads sends its next request after an answer.

    Each thread sends at least one request, however slow the server is.
    """

    def work(worker: int) -> int:
        done = 0
        for turn in count(worker, clients):
            request = requests[turn % len(requests)]
            scorer.score(client, path, request)
            done += len(request[1])
            if time.perf_counter() >= stop_at:
                break
        return done

    with PrefillClient(scorer.base_url) as client, ThreadPoolExecutor(clients) as pool:
        start = time.perf_counter()
        stop_at = start + seconds
        items = sum(pool.map(work, range(clients)))
    return items / (time.perf_counter() - start)
