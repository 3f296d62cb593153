"""The processes of a running server, from the outside."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from threading import Semaphore

import httpx
import psutil

from sglang_prefill_ext.local_server import LocalServer
from tests.integration.client import Client, Json, wait_until

GATE_S = 5.0
"""How long `held_back` makes the scheduler sleep: more than a busy machine needs to send."""

_TURNS = 20
"""Requests that the front end answers by itself while it passes on some that came before."""


def scheduler_pid(server: LocalServer) -> int:
    """The process of the only scheduler; SGLang names its processes after their roles."""
    titles = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in server.pids}
    (pid,) = (pid for pid, title in titles.items() if title.startswith("sglang::scheduler"))
    return pid


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def stop(pid: int) -> None:
    """Let a process stand still, but not while it holds a lock.

    SGLang's schedulers lock a file whenever they publish their load; whoever reads it would stand
    still, too, until that process goes on.
    """
    while True:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        locks = (line.split() for line in Path("/proc/locks").read_text().splitlines())
        if not any(str(pid) in fields for fields in locks):
            return
        os.kill(pid, signal.SIGCONT)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that stands still meanwhile, with its messages waiting for it."""
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def held_back(
    server: LocalServer,
    client: Client,
    pool: Executor,
    bodies: list[Json],
    path: str = "/v1/score",
) -> Iterator[list[Future[httpx.Response]]]:
    """Send requests while the scheduler sleeps in a stock batch.

    What is sent within the block reaches the scheduler together with these requests and after
    them, before it runs any, so the outcome does not depend on the speed of the machine.
    """
    client.post("/slow_down", {"forward_sleep_time": GATE_S})
    seen = server.log_path.stat().st_size
    blocker = pool.submit(client.generate, [5, 6, 7], 1, stock=True)
    wait_until(lambda: b"run_batch sleep" in server.log_path.read_bytes()[seen:])
    awake = pool.submit(client.post, "/slow_down", {"forward_sleep_time": None})
    replies = sent(client, pool, bodies, path)
    status = pool.submit(client.status)
    yield replies
    assert not blocker.done(), "the block was left too late"
    # The front end's part is taken when the request comes, the scheduler's when it awakes.
    assert status.result()["frontend"]["in_flight"] >= len(bodies), "sent too late"
    awake.result()


@contextmanager
def in_flight(
    server: LocalServer, client: Client, pool: Executor, body: Json
) -> Iterator[Future[httpx.Response]]:
    """Have a request's forward launched, and the scheduler sleep in a stock batch behind it.

    What is sent within the block reaches the scheduler before it collects that forward, if
    its server keeps forwards in flight.
    """
    client.post("/slow_down", {"forward_sleep_time": GATE_S})
    seen = server.log_path.stat().st_size

    def asleep(times: int) -> bool:
        return server.log_path.read_bytes()[seen:].count(b"run_batch sleep") == times

    blocker = pool.submit(client.generate, [5, 6, 7], 3, stock=True)
    wait_until(lambda: asleep(1))
    (reply,) = sent(client, pool, [body], "/v1/score")
    wait_until(lambda: asleep(2))
    awake = pool.submit(client.post, "/slow_down", {"forward_sleep_time": None})
    yield reply
    assert asleep(2), "the block was left too late"
    assert not reply.done()
    assert not blocker.done()
    awake.result()


def sent(
    client: Client,
    pool: Executor,
    bodies: list[Json],
    path: str,
    headers: Mapping[str, str] | None = None,
) -> list[Future[httpx.Response]]:
    """Send requests, and return when the front end has had the time to pass them on."""
    written = Semaphore(0)

    def note(event: str, _info: Json) -> None:
        if event.endswith("send_request_body.complete"):
            written.release()

    def send(body: Json) -> httpx.Response:
        return client.http.post(path, json=body, headers=headers, extensions={"trace": note})

    replies = [pool.submit(send, body) for body in bodies]
    for _ in bodies:
        assert written.acquire(timeout=GATE_S), "not sent"
    for _ in range(_TURNS):
        client.http.get("/model_info").raise_for_status()
    return replies
