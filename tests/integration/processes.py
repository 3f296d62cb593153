"""The processes of a running server, from the outside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path

import httpx

from sglang_prefill_ext.local_server import LocalServer
from tests.integration.client import Client, Json, wait_until

GATE_S = 5.0
"""How long `held_back` makes the scheduler sleep: more than a busy machine needs to send."""


def scheduler_pid(server: LocalServer) -> int:
    """The process of the only scheduler; SGLang names its processes after their roles."""
    titles = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in server.pids}
    (pid,) = (pid for pid, title in titles.items() if title.startswith("sglang::scheduler"))
    return pid


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that stands still meanwhile, with its messages waiting for it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def held_back(
    server: LocalServer, client: Client, pool: Executor, bodies: list[Json]
) -> Iterator[list[Future[httpx.Response]]]:
    """Send scoring requests while the scheduler sleeps in a stock batch.

    What is sent within the block reaches the scheduler together with these requests and after
    them, before it runs any, so the outcome does not depend on the speed of the machine.
    """
    client.post("/slow_down", {"forward_sleep_time": GATE_S})
    seen = server.log_path.stat().st_size
    blocker = pool.submit(client.generate, [5, 6, 7], 1, stock=True)
    wait_until(lambda: b"run_batch sleep" in server.log_path.read_bytes()[seen:])
    awake = pool.submit(client.post, "/slow_down", {"forward_sleep_time": None})
    replies = [pool.submit(client.post, "/v1/score", body) for body in bodies]
    time.sleep(1)
    status = pool.submit(client.status)
    yield replies
    assert not blocker.done(), "the block was left too late"
    # The front end's part is taken when the request comes, the scheduler's when it awakes.
    assert status.result()["frontend"]["in_flight"] >= len(bodies), "sent too late"
    awake.result()
