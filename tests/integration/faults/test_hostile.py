"""Hostile requests beside innocent clients, who get all their answers, and soon."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from sglang_prefill_ext.local_server import LocalServer
from tests.integration.support.client import Client, score_body, wait_until
from tests.integration.support.hostile_bodies import TYPED, Hostile, requests
from tests.integration.support.load import steady_load
from tests.integration.support.parity import assert_same_answers

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

GOOD = score_body(3, 40, [3, 12, 1])
MIB = 1 << 20
MOST_GROWTH = 1024 * MIB
LONGEST_HOLD_S = 1.0
"""In CPU seconds, which other load on the machine does not change."""


@dataclass
class Watch:
    """What can be observed of a server from outside.

    Attributes:
        held_s: for how long its event loop has computed and answered nothing, since this was last
            set to 0.
        most_bytes: resident memory of its processes, at most.
        probes: that have been answered.
    """

    held_s: float = 0.0
    most_bytes: int = 0
    probes: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def probe(self, server: LocalServer) -> None:
        """Send a request that the event loop answers without a scheduler."""
        assert server.pid is not None
        with httpx.Client(base_url=server.base_url, timeout=180) as http:
            while not self.stop.is_set():
                start_s = main_thread_s(server.pid)
                assert http.get("/v1/models").status_code == 200
                self.held_s = max(self.held_s, main_thread_s(server.pid) - start_s)
                self.probes += 1
                self.stop.wait(0.01)

    def settle(self) -> None:
        """Wait until a probe that is under way has ended, because it measures the time before."""
        seen = self.probes
        wait_until(lambda: self.probes > seen)

    def weigh(self, server: LocalServer) -> None:
        while not self.stop.is_set():
            self.most_bytes = max(self.most_bytes, memory_of(server))
            self.stop.wait(0.05)


def main_thread_s(pid: int) -> float:
    """CPU seconds of a process's main thread, which runs the event loop."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(server: LocalServer) -> int:
    found = 0
    for pid in server.pids:
        with suppress(psutil.NoSuchProcess):
            found += psutil.Process(pid).memory_info().rss
    return found


@contextmanager
def watched(client: Client, server: LocalServer) -> Iterator[Watch]:
    """Watch a server while innocent clients keep asking; all of these are answered rightly."""
    wanted, watch = client.score(GOOD), Watch()
    with ThreadPoolExecutor(2) as pool, steady_load(client, GOOD, workers=1) as answers:
        watching = [pool.submit(watch.probe, server), pool.submit(watch.weigh, server)]
        try:
            yield watch
        finally:
            watch.stop.set()
    for each in watching:
        each.result()
    assert_same_answers(answers, [wanted] * len(answers))


def send(client: Client, hostile: Hostile) -> str:
    """Send a request; return what is wrong about its answer."""
    headers = TYPED | hostile.headers
    response = client.http.post(hostile.path, content=hostile.content, headers=headers)
    if response.status_code in hostile.statuses:
        return ""
    return f"{response.status_code}: {response.text[:300]}"


def test_hostile_requests_cost_nobody_else_an_answer_or_much_time(
    client: Client, server: LocalServer
) -> None:
    count, before = 0, memory_of(server)
    wrong: dict[str, str] = {}
    slow: dict[str, float] = {}
    with watched(client, server) as watch:
        for hostile in requests():
            count += 1
            watch.held_s = 0.0
            wrong[hostile.name] = send(client, hostile)
            watch.settle()
            if watch.held_s > LONGEST_HOLD_S:
                slow[hostile.name] = watch.held_s
    assert count >= 100
    assert {name: what for name, what in wrong.items() if what} == {}
    assert slow == {}
    assert watch.most_bytes - before < MOST_GROWTH


def test_names_of_others_beginnings_end_nobody(client: Client, server: LocalServer) -> None:
    """When a client that named its generation "p" leaves, SGLang sends an abort of "p"."""
    sampling = {"max_new_tokens": 2000, "temperature": 0, "ignore_eos": True}
    with watched(client, server), client.counting() as moved:
        for rid in ("p", "pack", "packed-"):
            body = {"rid": rid, "input_ids": [5, 6, 7], "sampling_params": sampling, "stream": True}
            with client.http.stream("POST", "/generate", json=body) as response:
                assert response.status_code == 200
                next(response.iter_raw())
    assert moved["scheduler.requests.aborted"] == 0
    assert moved["scheduler.requests.ok"] > 0
