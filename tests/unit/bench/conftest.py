"""The stand-in server in a thread of its own, and the commands with a folder for their results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.bench.commands import Commands
from tests.unit.bench.stand_in import StandIn


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    folder = tmp_path / "results"
    monkeypatch.setattr("bench.command.RESULTS", folder)
    return Commands(folder)


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    server = StandIn()
    ready = threading.Event()
    stop: list[Callable[[], object]] = []

    async def run() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(stopped.set))
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
            server.port = listener.sockets[0].getsockname()[1]
            ready.set()
            await stopped.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert ready.wait(60.0)
    yield server
    stop[0]()
    thread.join(60.0)
    assert not thread.is_alive()
