"""The actor of routers over real router processes, without a cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet.ray_serve import routers
from sglang_prefill_ext.fleet.ray_serve.routers import RouterReplica
from sglang_prefill_ext.fleet.settings import Settings
from sglang_prefill_ext.process.ports import free_port

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _without_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routers, "_states", dict)


class Replica(RouterReplica):
    def __del__(self) -> None:  # type: ignore[override]
        """Nothing: only Serve ends a replica by it."""


async def replica_at(port: int) -> Replica:
    replica = Replica.__new__(Replica)
    await replica.__init__(Settings(port=port, grace_s=1), 1, "")  # type: ignore[misc]
    return replica


async def test_a_new_router_listens_and_knows_the_engines_before_the_old_one_ends() -> None:
    port = free_port()
    old = await replica_at(port)
    await old.join(NOWHERE)
    async with asyncio.timeout(60):
        while not (await old._page()).replicas:
            continue
    new = await replica_at(port)
    (pid,) = new._supervisor.pids.values()
    assert (await new._own_page()).pid == pid
    await old.end()
    page = await new._page()  # at once
    assert page.pid == pid
    assert [each.url for each in page.replicas] == [NOWHERE]
    await new.check_health()
    await new.end()
    with pytest.raises(EngineUnavailableError, match="No router answers"):
        await new.check_health()


@contextmanager
def stranger() -> Iterator[int]:
    """Another server, at the port that is returned."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response_only(404)
            self.send_header("content-length", "0")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


async def test_where_another_server_listens_no_router_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routers, "_LISTENING_S", 3.0)
    with stranger() as port, pytest.raises(EngineUnavailableError, match="No router answers"):
        await replica_at(port)
