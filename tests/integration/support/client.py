"""The tests' client of a running server, and the bodies of its requests."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from bench.status import pool_totals

Json = dict[str, Any]

VOCABULARY = 8_000
LABELS = [5, 9, 17, 4_000]
OPT_OUT = {"x-prefill-only": "off"}

_TIMEOUT_S = 180.0
_PATIENCE_S = 300.0
"""Limit for events to wait for; another test may keep the processor busy for seconds."""


def random_ids(rng: random.Random, length: int) -> list[int]:
    """Token ids without the model's three special tokens, which would end a generation."""
    return [rng.randrange(3, VOCABULARY) for _ in range(length)]


def score_body(seed: int, prefix: int, suffixes: list[int], **fields: Any) -> Json:
    """A scoring request with a query of `prefix` tokens and one item for each suffix length."""
    rng = random.Random(seed)
    query = random_ids(rng, prefix)
    items = [random_ids(rng, length) for length in suffixes]
    body = {"query": query, "items": items, "label_token_ids": LABELS}
    return body | {"return_token_logprobs": True} | fields


def setwise_body(anchor: int, name: str, query: int, items: list[list[int]]) -> Json:
    """A setwise request with a query of `query` tokens; `name` is the text of the token `anchor`.

    Items have candidates of these lengths, each followed by an anchor, and then three tokens.
    """
    rng = random.Random(query)

    def drawn(length: int) -> list[int]:
        return [token + (token == anchor) for token in random_ids(rng, length)]

    return {
        "query": drawn(query),
        "items": [[t for n in item for t in [*drawn(n), anchor]] + drawn(3) for item in items],
        "score_extraction_token": name,
    }


def generate_body(ids: list[int] | list[list[int]], new_tokens: int) -> Json:
    """A greedy generation of exactly `new_tokens` tokens."""
    sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
    return {"input_ids": ids, "sampling_params": sampling}


class Client:
    """Talks to one server; may be shared by threads."""

    def __init__(self, base_url: str) -> None:
        # The server drops connections that were idle for 5 s; a request sent just then would fail.
        # The margin is large, as either side may be stopped for seconds.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=1.0)
        self.http = httpx.Client(base_url=base_url, timeout=_TIMEOUT_S, limits=limits)
        self._schedulers = 1

    def post(self, path: str, body: Any, *, stock: bool = False) -> httpx.Response:
        """Send a body; `stock` asks for the stock path."""
        return self.http.post(path, json=body, headers=OPT_OUT if stock else None)

    def score(self, body: Json, *, stock: bool = False) -> Json:
        """Return the answer to a scoring request that must succeed."""
        response = self.post("/v1/score", body, stock=stock)
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    def generate(self, ids: list[int], new_tokens: int, *, stock: bool = False) -> list[int]:
        """Generate greedily exactly `new_tokens` tokens; return them."""
        response = self.post("/generate", generate_body(ids, new_tokens), stock=stock)
        assert response.status_code == 200, response.text
        output: list[int] = response.json()["output_ids"]
        return output

    def status(self) -> Json:
        response = self.http.get("/prefill_only/status")
        assert response.status_code == 200, response.text
        status: Json = response.json()
        self._schedulers = max(self._schedulers, len(status.get("schedulers", ())))
        return status

    def whole_status(self) -> Json:
        """The status with all schedulers: as many as were ever seen.

        It is asked for until it has them all, because a scheduler that answers too late, on a busy
        machine or in a long forward, is left out.
        """
        status: Json = {}

        def all_have_answered() -> bool:
            status.update(self.status())
            return len(status["schedulers"]) == self._schedulers

        wait_until(all_have_answered)
        return status

    def scheduler(self) -> Json:
        (scheduler,) = self.whole_status()["schedulers"]
        found: Json = scheduler
        return found

    def counters(self) -> Counter[str]:
        """Counters of front end and scheduler, flat: ``frontend.requests.packed``."""
        status = self.whole_status()
        (scheduler,) = status["schedulers"]
        return Counter(
            _flat("frontend", status["frontend"]["counters"])
            | _flat("scheduler", scheduler["counters"])
        )

    def collect_garbage(self, action: str) -> list[Json]:
        """Have every process of the server act; return their reports."""
        answer: Json = {}

        def all_have_acted() -> bool:
            response = self.post("/prefill_only/gc", {"action": action})
            assert response.status_code == 200, response.text
            answer.update(response.json())
            assert answer["action"] == action
            return bool(answer["complete"])  # on a busy machine a process may answer too late

        wait_until(all_have_acted)
        reports: list[Json] = answer["processes"]
        return reports

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """Fill the yielded counter, on leaving, with how much each counter has moved meanwhile."""
        moved: Counter[str] = Counter()
        before = self.counters()
        yield moved
        after = self.counters()
        moved.update({name: after[name] - before[name] for name in after - before})

    def memory(self) -> Json:
        """What SGLang's pools have free or can free, once packed work is done.

        The prefix cache is not emptied, because that would reset the pools and hide leaks.
        """
        self.wait_idle()
        (totals,) = pool_totals(self.whole_status())
        return totals

    def assert_memory_returns_to(self, before: Json) -> None:
        """Wait until memory is as `before`: SGLang frees a request's a little after its answer."""
        deadline = time.monotonic() + _PATIENCE_S
        while (now := self.memory()) != before:
            assert time.monotonic() < deadline, f"{now} instead of {before}"
            time.sleep(0.05)

    def flush(self) -> None:
        """Empty the prefix cache."""
        self.wait_idle()
        response = self.http.post("/flush_cache", params={"timeout": _PATIENCE_S})
        assert response.status_code == 200, response.text

    def wait_idle(self) -> None:
        """Wait until no packed request is on its way or queued."""

        def idle() -> bool:
            status = self.whole_status()
            queued = sum(one["queue"]["requests"] for one in status["schedulers"])
            return not status["frontend"]["in_flight"] and not queued

        wait_until(idle)


def wait_until(done: Callable[[], bool], timeout_s: float = _PATIENCE_S) -> None:
    """Poll until `done`; the test fails if that never happens."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, f"not {done.__qualname__} within {timeout_s:g} s"
        time.sleep(0.05)


def _flat(prefix: str, values: Json) -> dict[str, int]:
    flat: dict[str, int] = {}
    for name, value in values.items():
        key = f"{prefix}.{name}"
        flat |= _flat(key, value) if isinstance(value, dict) else {key: value}
    return flat
