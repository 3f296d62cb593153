"""Streamed generations, alone or beside a loop of scoring requests."""

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
"""How much longer than warm-up and window the arrivals of an open loop beside it go on."""


@dataclass(slots=True)
class Throughout:
    """Lets a closed loop of scoring go on for as long as the generations beside it are measured.

    Attributes:
        measuring: the clock of the phase runs.
        over: it has stopped.
        scored: a request was answered in between.
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
    """What happened between two readings of the clock.

    Attributes:
        begin_s, end_s: on the clock of `time.perf_counter`.
        answers: of every generation, also before and after: the prompt's number and what came.
        scoring: what the loop beside it saw; None without one.
        packed: what the server counted in between; None where it was not asked.
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
        """Scoring requests answered in between, per second."""
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
    """Let clients generate, each its next prompt once the last one is done.

    What is measured lasts until a client has begun and ended a generation in it, however slow the
    machine is, and until a closed loop beside it has had an answer.

    Args:
        port: of the server.
        prompts: prepared requests, sent in turn and again from the start.
        clients: generations under way at any time.
        seconds: least length of what is measured, after `WARM_UP_S`.
        scoring: a loop to run beside it.
        throughout: what ends that loop; None for an open one.
        is_extension: whether the server counts packed forwards.

    Raises:
        ExceptionGroup: of `LoadError`, where answers were not 200.
    """
    phase = Phase()
    if throughout is None:
        throughout = Throughout()
        throughout.scored.set()  # nothing to wait for
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
        return await packed_counters(port) if is_extension else None

    try:
        async with asyncio.TaskGroup() as tasks:
            for connection in connections:
                tasks.create_task(generate(connection))
            beside = None if scoring is None else tasks.create_task(scoring)
            await asyncio.sleep(WARM_UP_S)
            before = await read_counters()
            phase.begin_s, cpu_begin_s = time.perf_counter(), time.process_time()
            missing = clients + 1  # one of the clients ends two of these, and so begins one
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
