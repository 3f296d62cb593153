"""Run streamed generations, alone or beside a loop of scoring requests."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.http_client import Piece, StreamConnection, connect
from bench.load import Measurement
from bench.status import PackedCounters, packed_counters

WARM_UP_S = 2.0
SCORING_MARGIN_S = 1.0
"""Scoring requests of an open loop arrive for this much longer than warm-up and measurement."""


@dataclass(slots=True)
class Throughout:
    """The `Ending` of a closed loop of scoring that runs while generations are measured.

    Attributes:
        measuring: whether the measurement has begun.
        over: whether it has ended.
        scored: set when a scoring request was answered during the measurement.
    """

    measuring: bool = False
    over: bool = False
    scored: asyncio.Event = field(default_factory=asyncio.Event)

    def is_over(self, _seen: Measurement) -> bool:
        """See `Ending`."""
        if self.measuring:
            self.scored.set()
        return self.over


@dataclass(slots=True)
class Phase:
    """One measurement of generations.

    Attributes:
        begin_s, end_s: its limits on the clock of `time.perf_counter`.
        answers: prompt number and received parts of every generation, those of the warm-up and
            those that ended after `end_s` included.
        scoring: what the loop of scoring measured; None without such a loop.
        packed: what the server counted in between; None if it has no such counters.
        generator_cpu_s: CPU seconds of this process in between.
    """

    begin_s: float = 0.0
    end_s: float = 0.0
    answers: list[tuple[int, list[Piece]]] = field(default_factory=list)
    scoring: Measurement | None = None
    packed: PackedCounters | None = None
    generator_cpu_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    @property
    def scored_per_s(self) -> float:
        """Scoring requests per second that were answered during the measurement."""
        ended_s = self.scoring.ended_s if self.scoring is not None else []
        return sum(self.begin_s <= each < self.end_s for each in ended_s) / self.seconds

    @property
    def packed_share(self) -> float | None:
        """Share of the time in which packed forwards kept the device busy."""
        return None if self.packed is None else self.packed.busy_s / self.seconds


async def generate_each(port: int, prompts: Sequence[bytes]) -> Phase:
    """Send every prompt once, one after the other."""
    phase = Phase()
    connection = await connect(port, StreamConnection)
    try:
        for number, prompt in enumerate(prompts):
            phase.answers.append((number, await connection.stream(prompt)))
    finally:
        connection.close()
    return phase


async def run_phase(
    port: int,
    prompts: Sequence[bytes],
    clients: int,
    seconds: float,
    *,
    scoring: Coroutine[Any, Any, Measurement] | None = None,
    throughout: Throughout | None = None,
    is_extension: bool,
) -> Phase:
    """Measure clients that generate; each sends its next prompt once the last one is done.

    The measurement is extended, however slow the machine is, until a client has begun and ended a
    generation in it, and until a closed loop of scoring has had an answer in it.

    Args:
        port: of the server.
        prompts: prepared requests, sent in order, then again from the first.
        clients: generations under way at any time.
        seconds: least length of the measurement, which begins after `WARM_UP_S`.
        scoring: a loop of scoring requests to run at the same time.
        throughout: ends that loop if it is a closed one; None for an open one.
        is_extension: whether the server counts packed forwards.

    Raises:
        ExceptionGroup: of `LoadError`, where answers were not 200.
    """
    phase = Phase()
    if throughout is None:
        throughout = Throughout()
        throughout.scored.set()  # there is no closed loop to wait for
    missing, generated = math.inf, asyncio.Event()
    numbers = itertools.cycle(range(len(prompts)))
    connections = [await connect(port, StreamConnection) for _ in range(clients)]

    async def generate(connection: StreamConnection) -> None:
        nonlocal missing
        while not phase.end_s:
            number = next(numbers)
            phase.answers.append((number, await connection.stream(prompts[number])))
            missing -= 1
            if missing <= 0:
                generated.set()

    async def read_counters() -> PackedCounters | None:
        return await asyncio.to_thread(packed_counters, port) if is_extension else None

    try:
        async with asyncio.TaskGroup() as tasks:
            for connection in connections:
                tasks.create_task(generate(connection))
            beside = None if scoring is None else tasks.create_task(scoring)
            await asyncio.sleep(WARM_UP_S)
            before = await read_counters()
            phase.begin_s, cpu_begin_s = time.perf_counter(), time.process_time()
            # Of clients + 1 ended generations, one client has ended two, so it began the second.
            missing = clients + 1
            throughout.measuring = True
            await asyncio.sleep(seconds)
            await generated.wait()
            await throughout.scored.wait()
            after = await read_counters()
            phase.generator_cpu_s = time.process_time() - cpu_begin_s
            phase.end_s = time.perf_counter()
            throughout.over = True
    finally:
        for connection in connections:
            connection.close()
    if before is not None and after is not None:
        phase.packed = after.since(before)
    phase.scoring = None if beside is None else beside.result()
    return phase
