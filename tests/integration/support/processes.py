"""Finds, stops and times the processes of a running server from the outside."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Semaphore

import httpx
import psutil

from bench.cores import is_scheduler
from sglang_prefill_ext.attach import carrier
from sglang_prefill_ext.frontend.options import TIMEOUT_HEADER
from sglang_prefill_ext.local_server import LocalServer
from tests.integration.programs.in_servers.sitecustomize import UNTIL_WOKEN_S, asleep
from tests.integration.support.client import Client, Json, wait_until

_SENT_S = 300.0
_TURNS = 20
"""Requests that the front end answers by itself; by then it has passed on those sent before."""


def scheduler_pid(server: LocalServer) -> int:
    """The process of the only scheduler."""
    (pid,) = scheduler_pids(server)
    return pid


def scheduler_pids(server: LocalServer) -> list[int]:
    """The processes of schedulers."""
    found = []
    for pid in server.pids:
        with suppress(OSError):  # it has just ended
            if is_scheduler(pid):
                found.append(pid)
    return found


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def stop(pid: int) -> None:
    """Stop a process (SIGSTOP), but not while it holds a file lock.

    SGLang's schedulers lock a file while they publish their load. A process that reads it would
    wait until the stopped process goes on.
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
    """Stop a process meanwhile; messages to it wait. It may be killed meanwhile, too."""
    stop(pid)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def schedulers_stopped(server: LocalServer) -> Iterator[None]:
    """Stop all schedulers meanwhile, however many there are."""
    with ExitStack() as still:
        for pid in scheduler_pids(server):
            still.enter_context(stopped(pid))
        yield


def late_answer(
    servers: Iterable[LocalServer], client: Client, path: str, body: Json
) -> httpx.Response:
    """The answer to a request that no scheduler sees before its deadline."""
    with ThreadPoolExecutor(1) as pool:
        with ExitStack() as still:
            for server in servers:
                still.enter_context(schedulers_stopped(server))
            (late,) = sent(client, pool, [body], path, {TIMEOUT_HEADER: "1"})
            time.sleep(0.01)  # longer than it may take
        return late.result()


@contextmanager
def held_back(
    server: LocalServer, client: Client, pool: Executor, bodies: list[Json], path: str = "/v1/score"
) -> Iterator[list[Future[httpx.Response]]]:
    """Send packed requests while the scheduler sleeps in a stock batch, until the block is left.

    Requests that are `sent` within the block reach the scheduler together with these and after
    them, before it runs any. So the outcome does not depend on the speed of the machine.
    """
    with _sleeping(server, client, pool, batches=1):
        yield [passed_on(client, pool, body, path) for body in bodies]


@contextmanager
def in_flight(
    server: LocalServer, client: Client, pool: Executor, body: Json
) -> Iterator[Future[httpx.Response]]:
    """Have a request's forward launched, and then the scheduler sleep in a stock batch.

    Requests that are `sent` within the block reach the scheduler before it collects that forward,
    if the server keeps forwards in flight.
    """
    with _sleeping(server, client, pool, batches=2) as wake:
        reply = passed_on(client, pool, body)
        wake()
        yield reply
        assert not reply.done()


@contextmanager
def _sleeping(
    server: LocalServer, client: Client, pool: Executor, batches: int
) -> Iterator[Callable[[], None]]:
    """Have the scheduler sleep in stock batches, in the last of them until the block is left.

    Yields:
        A function that wakes it, and returns when it sleeps in the next batch.
    """
    gate = asleep(scheduler_pid(server))
    gate.unlink(missing_ok=True)  # left by a process with the same id that ended while asleep
    client.post("/slow_down", {"forward_sleep_time": UNTIL_WOKEN_S})
    # A batch for the prompt, then one for each further token.
    blocker = pool.submit(client.generate, [5, 6, 7], batches, stock=True)
    wait_until(gate.exists)

    def wake() -> None:
        wait_until(lambda: _delivered(server))
        gate.unlink()
        wait_until(gate.exists)

    try:
        yield wake
        wait_until(lambda: _delivered(server))
        assert not blocker.done()
    finally:
        awake = pool.submit(client.post, "/slow_down", {"forward_sleep_time": None})
        while not awake.done():  # it may sleep once more before it reads this request
            gate.unlink(missing_ok=True)
            wait([awake], timeout=0.01)
    awake.result()


def _delivered(server: LocalServer) -> bool:
    """Whether every message that a process has sent has reached the process it is for.

    ZMQ's own threads carry messages. They all sleep, in two looks, once they have nothing to carry.
    """
    try:
        tasks = [task for pid in server.pids for task in Path(f"/proc/{pid}/task").iterdir()]
        carriers = [task for task in tasks if (task / "comm").read_text().startswith("ZMQbg/IO")]
        looks = [(task / "stat").read_text() for _ in range(2) for task in carriers]
    except OSError:  # a thread or process has ended meanwhile
        return False
    assert carriers
    return all(look.rpartition(") ")[2].startswith("S") for look in looks)


def tokens_under_way(client: Client) -> int:
    """Tokens of packed requests that were sent to the scheduler and are not answered yet.

    The front end reports them in its answer to rows, at once, even while the scheduler sleeps. The
    rows sent here are invalid and are refused.
    """
    response = client.http.post(carrier.ROWS_PATH, content=b"")
    assert response.status_code == 200, response.text
    return carrier.answer_from(response.content).tokens


@contextmanager
def passing_on(client: Client) -> Iterator[None]:
    """Wait, on leaving the block, until the packed request that it sends was passed on.

    The scheduler must not answer any request meanwhile.
    """
    before = tokens_under_way(client)
    yield
    wait_until(lambda: tokens_under_way(client) > before)


def passed_on(
    client: Client,
    pool: Executor,
    body: Json,
    path: str = "/v1/score",
    headers: Mapping[str, str] | None = None,
) -> Future[httpx.Response]:
    """Send a packed request as in `passing_on`."""
    with passing_on(client):
        return pool.submit(client.http.post, path, json=body, headers=headers)


def passed_on_by_one(client: Client, path: str, body: Json) -> HTTPConnection:
    """As `passed_on`, over a connection of its own, which the caller closes."""
    with passing_on(client):
        return begun(client, path, body)


def leave(client: Client, body: Json) -> None:
    """Send a scoring request, and close its connection once it was passed on to the scheduler.

    Returns when the abort was passed on, too. The scheduler must not answer any request meanwhile.
    """
    before = tokens_under_way(client)
    passed_on_by_one(client, "/v1/score", body).close()
    wait_until(lambda: tokens_under_way(client) == before)


def begun(
    client: Client, path: str, body: Json, headers: Mapping[str, str] | None = None
) -> HTTPConnection:
    """Send a request; return its connection, which the caller closes."""
    url, kind = client.http.base_url, {"content-type": "application/json"}
    connection = HTTPConnection(url.host, url.port)
    connection.request("POST", path, json.dumps(body), {**kind, **(headers or {})})
    return connection


def sent(
    client: Client,
    pool: Executor,
    bodies: list[Json],
    path: str,
    headers: Mapping[str, str] | None = None,
) -> list[Future[httpx.Response]]:
    """Send requests, and return when the front end must have passed them on."""
    written = Semaphore(0)

    def note(event: str, _info: Json) -> None:
        if event.endswith("send_request_body.complete"):
            written.release()

    def send(body: Json) -> httpx.Response:
        return client.http.post(path, json=body, headers=headers, extensions={"trace": note})

    replies = [pool.submit(send, body) for body in bodies]
    for _ in bodies:
        assert written.acquire(timeout=_SENT_S), "not sent"
    take_turns(client)
    return replies


def take_turns(client: Client) -> None:
    """Make sure that the front end has passed on the requests that were sent to it."""
    for _ in range(_TURNS):
        client.http.get("/model_info").raise_for_status()
