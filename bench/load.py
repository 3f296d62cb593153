"""Closed and open loops against a server on this machine."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from bench.http_client import Connection, LoadError, connect

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Window:
    """How long to measure.

    Attributes:
        seconds: least length of the measured part.
        min_requests: least number of answers; a slow server is measured for longer.
    """

    seconds: float
    min_requests: int

    def is_over(self, seen: Measurement) -> bool:
        """Whether a loop may end after what it has seen."""
        return len(seen.latencies_s) >= self.min_requests and seen.seconds >= self.seconds


@dataclass(slots=True)
class Measurement:
    """What a loop measured after its warm-up.

    Attributes:
        seconds: from the end of the warm-up (closed) or the first arrival (open) to the last
            counted answer.
        latencies_s: one per counted answer. Closed: from sending. Open: from the *scheduled*
            arrival, so that the delay of a late generator or a full queue counts.
        numbers: for each latency, the number of its request in the pool.
        ended_s: when the answers were complete, on the clock of `time.perf_counter`.
        answers: last body received for each request of the pool, by its number.
        sent: all answered requests, those of the warm-up included.
        generator_cpu_s: CPU seconds that this process took from the server meanwhile.
    """

    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)
    answers: dict[int, bytes] = field(default_factory=dict)
    sent: int = 0
    generator_cpu_s: float = 0.0

    @property
    def requests_per_s(self) -> float:
        return len(self.latencies_s) / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """Latency in ms that `percent` of the answers did not exceed."""
        return float(np.percentile(self.latencies_s, percent)) * 1e3

    def figures(self) -> dict[str, Any]:
        """Fields that results of all loops have."""
        return {
            "requests": len(self.latencies_s),
            "requests_per_s": self.requests_per_s,
            "p50_ms": self.percentile_ms(50),
            "p99_ms": self.percentile_ms(99),
        }

    def add(self, number: int, latency_s: float, ended_s: float, answer: bytes) -> None:
        """Count an answer."""
        self.latencies_s.append(latency_s)
        self.numbers.append(number)
        self.ended_s.append(ended_s)
        self.answers[number] = answer


def run_loop(loop: Coroutine[Any, Any, T]) -> T:
    """Run one of the loops below, or a coroutine that awaits them, to its end.

    Raises:
        LoadError: an answer was not 200; the first one if there were several.
    """
    try:
        return asyncio.run(loop)
    except* LoadError as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):  # raised by loops that ran side by side
            error = error.exceptions[0]
    raise error


class Ending(Protocol):
    """Decides when a closed loop ends: a `Window`, or an object that waits for another loop."""

    def is_over(self, seen: Measurement) -> bool:
        """Whether the loop may end; asked after every answer that counts."""


async def closed_loop(
    port: int, pool: Sequence[bytes], clients: int, window: Ending
) -> Measurement:
    """Run `clients` connections; each sends its next request once it has the last answer.

    The first `clients` answers warm the server up and are not counted. The window begins with the
    last of them.

    Args:
        port: of the server.
        pool: prepared requests, sent in order, then again from the first.
        clients: requests under way at any time.
        window: how long to measure.

    Raises:
        ExceptionGroup: of `LoadError`, where answers were not 200.
    """
    counting = _Counting(window, warm_up=clients)
    numbers = itertools.cycle(range(len(pool)))

    async def client(connection: Connection) -> None:
        while not counting.done:
            number = next(numbers)
            sent = time.perf_counter()
            answer = await connection.send(pool[number])
            counting.add(number, time.perf_counter() - sent, answer)

    connections = [await connect(port, Connection) for _ in range(clients)]
    try:
        async with asyncio.TaskGroup() as tasks:
            for connection in connections:
                tasks.create_task(client(connection))
    finally:
        for connection in connections:
            connection.close()
    return counting.measurement


def ask_each(port: int, pool: Sequence[bytes], clients: int = 1) -> dict[int, bytes]:
    """Send every request; return the answers by number.

    Args:
        clients: requests under way at any time.

    Raises:
        LoadError: one of them was not 200.
    """
    return run_loop(closed_loop(port, pool, clients, Window(0.0, len(pool)))).answers


class _Counting:
    """Counts the answers of a closed loop between its warm-up and the end of its window."""

    def __init__(self, window: Ending, warm_up: int) -> None:
        self.measurement = Measurement()
        self.done = False
        self._window = window
        self._warm_up_left = warm_up
        self._begin = self._cpu_begin = 0.0

    def add(self, number: int, latency_s: float, answer: bytes) -> None:
        self.measurement.sent += 1
        if self.done:  # the request was under way when the window closed
            return
        now = time.perf_counter()
        if self._warm_up_left:
            self._warm_up_left -= 1
            self._begin, self._cpu_begin = now, time.process_time()
            return
        seen = self.measurement
        seen.add(number, latency_s, now, answer)
        seen.seconds = now - self._begin
        if self._window.is_over(seen):
            seen.generator_cpu_s = time.process_time() - self._cpu_begin
            self.done = True


def poisson_arrivals(requests_per_s: float, window: Window, seed: int) -> np.ndarray:
    """Draw the time of each arrival in seconds after the start, ascending; float64 ``[arrivals]``.

    The number of arrivals is the mean number in the window, and at least its `min_requests`.
    """
    count = max(window.min_requests, math.ceil(requests_per_s * window.seconds))
    gaps = np.random.default_rng(seed).exponential(1 / requests_per_s, count)
    return np.cumsum(gaps)


async def open_loop(port: int, pool: Sequence[bytes], arrivals: np.ndarray) -> Measurement:
    """Send a request at every arrival, whether or not earlier ones were answered.

    Args:
        port: of the server.
        pool: prepared requests, sent in order, then again from the first.
        arrivals: seconds after the start, ascending; float64 ``[arrivals]``.

    Raises:
        ExceptionGroup: of `LoadError`, where answers were not 200.
    """
    seen = Measurement()
    idle: list[Connection] = []
    opened: list[Connection] = []
    cpu_begin, begin = time.process_time(), time.perf_counter()

    async def exchange(number: int, due: float) -> None:
        if idle:
            connection = idle.pop()
        else:
            connection = await connect(port, Connection)
            opened.append(connection)
        answer = await connection.send(pool[number])
        now = time.perf_counter()
        idle.append(connection)
        seen.seconds = now - begin
        seen.add(number, seen.seconds - due, now, answer)
        seen.sent += 1

    try:
        async with asyncio.TaskGroup() as tasks:
            for number, due in zip(itertools.cycle(range(len(pool))), arrivals, strict=False):
                await asyncio.sleep(begin + due - time.perf_counter())
                tasks.create_task(exchange(number, float(due)))
    finally:
        for connection in opened:
            connection.close()
    seen.generator_cpu_s = time.process_time() - cpu_begin
    return seen
