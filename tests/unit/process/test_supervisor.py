from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sglang_prefill_ext.process import supervisor as module
from sglang_prefill_ext.process.supervisor import Supervisor
from tests.unit.process.processes import alive
from tests.unit.waiting import until

SLEEPER = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "open(sys.argv[1], 'a').write('x'); time.sleep(600)"
)
READER = "import sys; sys.stdin.read(); open(sys.argv[1], 'a').write('x')"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_FIRST_S", 0.01), ("_LONGEST_S", 0.05), ("_SLACK_S", 0.0)):
        monkeypatch.setattr(module, name, seconds)


def command(code: str, *args: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, args)]


@asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[asyncio.Future[None]]:
    """Let it supervise until the block is left."""
    stop = asyncio.Event()
    supervising = asyncio.ensure_future(supervisor.run(stop))
    try:
        yield supervising
    finally:
        stop.set()
        await supervising


async def test_what_dies_is_started_again_and_the_others_live_on() -> None:
    supervisor = Supervisor(command(SLEEPER), 2, grace_s=10)
    async with running(supervisor):
        await until(lambda: len(supervisor.pids) == 2)
        before = dict(supervisor.pids)
        os.kill(before[0], signal.SIGKILL)
        await until(lambda: supervisor.pids[0] != before[0])
        assert supervisor.pids[1] == before[1]
        assert alive(before[1])
    assert not any(map(alive, [*before.values(), *supervisor.pids.values()]))


@pytest.mark.parametrize(
    ("healthy_s", "waited"),
    [(60.0, ["0.01", "0.02", "0.04", "0.05"]), (0.0, ["0.01"] * 4)],
    ids=["at once", "after a while"],
)
async def test_one_that_cannot_live_is_left_dead_for_longer_only_if_it_dies_at_once(
    healthy_s: float,
    waited: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_HEALTHY_S", healthy_s)
    supervisor = Supervisor(command("raise SystemExit(3)"), 1, grace_s=1)
    async with running(supervisor):
        await until(lambda: caplog.text.count("ended with 3") >= 4, timeout_s=60)
    waits = [str(record.args[2]) for record in caplog.records if isinstance(record.args, tuple)]
    assert waits[:4] == waited


async def test_one_that_does_not_go_is_killed(tmp_path: Path) -> None:
    started = tmp_path / "started"
    supervisor = Supervisor(command(STUBBORN, started), 1, grace_s=0.2)
    async with running(supervisor):
        await until(started.exists)
        (pid,) = supervisor.pids.values()
    assert not alive(pid)


async def test_the_input_ends_with_the_supervisor(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    code = (
        "import asyncio, sys\n"
        "from sglang_prefill_ext.process.supervisor import Supervisor\n"
        f"command = {command(READER, ended)!r}\n"
        "asyncio.run(Supervisor(command, 1, grace_s=1).run(asyncio.Event()))\n"
    )
    supervisor = await asyncio.create_subprocess_exec(*command(code))
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
    await until(lambda: children.read_text().split(), timeout_s=60)
    assert not ended.exists()
    supervisor.kill()
    await supervisor.wait()
    await until(ended.exists, timeout_s=60)


async def test_what_is_said_reaches_every_process_and_those_that_start_later(
    tmp_path: Path,
) -> None:
    code = "import sys\nfor line in sys.stdin: print(line, end='', file=open(sys.argv[1], 'a'))"
    heard = tmp_path / "heard"
    heard.touch()
    supervisor = Supervisor(command(code, heard), 2, grace_s=10)
    supervisor.say(b"one")
    async with running(supervisor):
        await until(lambda: heard.read_text().count("one") == 2)
        supervisor.say(b"two")
        await until(lambda: heard.read_text().count("two") == 2)
        os.kill(supervisor.pids[0], signal.SIGKILL)
        await until(lambda: heard.read_text().count("two") == 3)
    assert heard.read_text().count("one") == 2


def test_what_is_said_reaches_the_others_when_one_has_just_died() -> None:
    async def say_meanwhile() -> None:
        supervisor = Supervisor(command("import sys; sys.stdin.read()"), 2, grace_s=10)
        async with running(supervisor):
            await until(lambda: len(supervisor.pids) == 2)
            dead = supervisor.pids[0]
            os.kill(dead, signal.SIGKILL)
            while supervisor.pids[0] == dead:
                supervisor.say(b"hello")
                await asyncio.sleep(0)

    uvloop.run(say_meanwhile())  # Ray's loop, too; it raises where a pipe was closed


def test_processes_that_die_at_once_do_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    async def supervise_them() -> None:
        supervisor = Supervisor(["/bin/true"], 8, grace_s=10)
        supervisor.say(b"hello")
        async with running(supervisor) as supervising:
            await until(lambda: caplog.text.count("ended with 0") >= 100 or supervising.done())
            assert not supervising.done()

    uvloop.run(supervise_them())


async def test_processes_have_variables_besides_those_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONE", "1")
    seen = tmp_path / "seen"
    code = "import os, sys; open(sys.argv[1], 'a').write(os.environ['ONE'] + os.environ['TWO'])"
    env = {"TWO": "2\n"}
    supervisor = Supervisor(command(code, seen), 1, grace_s=1, env=env)
    async with running(supervisor):
        await until(lambda: seen.exists() and seen.read_text().startswith("12\n"), timeout_s=60)
    assert "TWO" not in os.environ


async def test_a_process_that_cannot_be_started_now_is_started_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, failures = asyncio.create_subprocess_exec, [OSError("no memory"), OSError("no memory")]

    async def fail_first(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        if failures:
            raise failures.pop()
        return await start(*args, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail_first)
    supervisor = Supervisor(command(SLEEPER), 1, grace_s=10)
    async with running(supervisor) as supervising:
        await until(lambda: supervisor.pids or supervising.done())
        assert not supervising.done()
        assert alive(supervisor.pids[0])


SUPERVISING = """
import asyncio, sys
from sglang_prefill_ext.process.supervisor import supervise
asyncio.run(supervise(sys.argv[1:], 1, grace_s=10, said=b"hello"))
"""
POLITE = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"{heard} and went"))
heard = sys.stdin.readline().strip()
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_processes_and_then_their_supervisor(number: int) -> None:
    pipe = asyncio.subprocess.PIPE
    supervisor = await asyncio.create_subprocess_exec(
        *command(SUPERVISING, *command(POLITE)), stdout=pipe, stderr=pipe
    )
    assert supervisor.stdout is not None
    assert await supervisor.stdout.readline() == b"ready\n"
    supervisor.send_signal(number)
    _, told = await supervisor.communicate()
    assert (supervisor.returncode, told) == (0, b"hello and went\n")
