"""The actor of an engine over a stand-in of its server, without a cluster."""

from __future__ import annotations

import asyncio
import threading

import pytest
import ray

from sglang_prefill_ext.errors import ServerStartError
from sglang_prefill_ext.fleet.ray_serve.engine import EngineReplica
from sglang_prefill_ext.fleet.ray_serve.launch import Launch


class StartingServer:
    """Is not ready before it is stopped."""

    base_url = "http://127.0.0.1:9"

    def __init__(self, launch: Launch, host: str) -> None:
        self.running = False
        self.waited, self.stopped = threading.Event(), threading.Event()

    def start(self) -> None:
        self.running = True

    def wait_ready(self, timeout_s: float) -> None:
        self.waited.set()
        assert self.stopped.wait(60)
        raise ServerStartError("It has ended.")

    def stop(self, grace_s: float) -> None:
        self.running = False
        self.stopped.set()


class Replica(EngineReplica):
    _server_class = StartingServer

    def __del__(self) -> None:  # type: ignore[override]
        """Nothing: only Serve ends a replica by it."""


async def test_an_engine_that_is_not_wanted_any_more_ends_while_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    replica = Replica.__new__(Replica)
    await replica.end()  # before it has a server
    starting = asyncio.ensure_future(replica.__init__(Launch("model")))  # type: ignore[misc]
    async with asyncio.timeout(60):
        await asyncio.sleep(0)  # it starts the server in this thread
        await asyncio.to_thread(replica._server.waited.wait)
        assert replica._server.running
        await replica.end()
    assert not replica._server.running
    with pytest.raises(ServerStartError):
        await starting
