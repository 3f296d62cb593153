"""A scoring client that can choose the path and knows what each request cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
