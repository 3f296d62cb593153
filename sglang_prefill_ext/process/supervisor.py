"""Keeps a number of equal processes alive, and ends them together."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Mapping, Sequence

logger = logging.getLogger(__name__)

_SLACK_S = 5.0
"""How long a process may take to end besides its requests under way."""

_FIRST_S, _LONGEST_S = 0.1, 10.0
"""Time before a process is started again, at first and at most; every death in a row doubles it."""

_HEALTHY_S = 10.0
"""If a process has lived longer than this, its death begins a new row."""


class Supervisor:
    """Runs copies of a command until `stop`, and starts those again that end before.

    Their standard input is a pipe that only `say` writes to; its end tells them that the supervisor
    is gone.

    Args:
        grace_s: seconds that the processes give their requests under way on SIGTERM.
        env: environment variables of the processes, besides those of this one.
    """

    def __init__(
        self,
        command: Sequence[str],
        copies: int,
        *,
        grace_s: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._command = command
        self._env = {**os.environ, **(env or {})}
        self._copies = copies
        self._grace_s = grace_s
        self.pids: dict[int, int] = {}
        self._said = b""
        self._inputs: dict[int, asyncio.StreamWriter] = {}

    def say(self, line: bytes) -> None:
        """Write a line to every process; a process that starts later gets the latest line."""
        self._said = line + b"\n"
        for each in self._inputs.values():
            self._tell(each)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the processes alive until `stop`; return when all have ended."""
        await asyncio.gather(*(self._keep_one(number, stop) for number in range(self._copies)))

    async def _keep_one(self, number: int, stop: asyncio.Event) -> None:
        deaths = 0
        while not stop.is_set():
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    env=self._env,
                    stdin=asyncio.subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:  # such as too little memory just now
                failed = "A process cannot be started (%s); the next attempt is in %g s."
                logger.warning(failed, error, _LONGEST_S)
                await _came_before(stop, asyncio.sleep(_LONGEST_S))
                continue
            assert process.stdin is not None, "it is a pipe"
            self.pids[number], self._inputs[number] = process.pid, process.stdin
            self._tell(process.stdin)
            begin_s = time.monotonic()
            if await _came_before(stop, process.wait()):
                await self._end(process)
                return
            deaths = 1 if time.monotonic() - begin_s > _HEALTHY_S else deaths + 1
            wait_s = min(_FIRST_S * 2.0 ** min(deaths - 1, 30), _LONGEST_S)
            ended = "Process %d ended with %s; another one starts in %g s."
            logger.warning(ended, process.pid, process.returncode, wait_s)
            await _came_before(stop, asyncio.sleep(wait_s))

    def _tell(self, told: asyncio.StreamWriter) -> None:
        if not told.is_closing():  # else its process has just died; uvloop would raise
            told.write(self._said)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._grace_s + _SLACK_S)
        except TimeoutError:
            logger.warning("Process %d did not end in time and is killed.", process.pid)
            process.kill()
            await process.wait()


async def supervise(
    command: Sequence[str],
    copies: int,
    *,
    grace_s: float,
    env: Mapping[str, str] | None = None,
    said: bytes = b"",
) -> None:
    """Keep processes alive until SIGTERM or SIGINT comes.

    Args:
        grace_s, env: see `Supervisor`.
        said: a line for each; empty for none.
    """
    stop = told_to_stop()
    supervisor = Supervisor(command, copies, grace_s=grace_s, env=env)
    if said:
        supervisor.say(said)
    await supervisor.run(stop)


def told_to_stop() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set, from now on."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _came_before(stop: asyncio.Event, work: Awaitable[object]) -> bool:
    """Wait for the work or for `stop`; return whether it was `stop`."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        return stop.is_set()
    finally:
        working.cancel()
        stopping.cancel()
