"""A router process over an engine whose model is a stub."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sglang_prefill_ext.fleet.settings import Engines, Settings
from sglang_prefill_ext.grpc_frontend.prefill_pb2_grpc import PrefillStub
from sglang_prefill_ext.process.children import module_command
from sglang_prefill_ext.process.ports import free_port
from tests.unit.fleet.stub_engines import Stub, served
from tests.unit.grpc_frontend.calls import id_request
from tests.unit.waiting import until

_SERVING = health_pb2.HealthCheckResponse.SERVING


@asynccontextmanager
async def routing(settings: Settings, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A router process with one engine."""
    process = await asyncio.create_subprocess_exec(
        *module_command("sglang_prefill_ext.fleet.server", settings.to_json()),
        stdin=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(Engines((url,)).to_line() + b"\n")
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_calls_over_grpc_end_before_the_process_on_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    stub = Stub()
    stub.engine.fall_silent()
    settings = Settings(port=free_port(), grpc_port=free_port(), grace_s=60.0)
    async with (
        served(stub.app()) as url,
        routing(settings, url) as process,
        grpc.aio.insecure_channel(f"127.0.0.1:{settings.grpc_port}") as channel,
    ):
        await asyncio.wait_for(channel.channel_ready(), 60)
        health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        while (await health.read()).status != _SERVING:
            pass
        scoring = PrefillStub(channel)  # type: ignore[no-untyped-call]
        call = scoring.Score(id_request([3, 4], [[6], [7]]))
        await until(lambda: bool(stub.engine.link.sent))
        process.send_signal(signal.SIGTERM)
        while (await health.read()).status == _SERVING:
            pass
        ((rid, rows),) = stub.engine.link.sent
        stub.engine.exchange.deliver(rid, stub.engine.answer(rows))
        assert (await asyncio.wait_for(call, 60)).scores
        health.cancel()
        assert await asyncio.wait_for(process.wait(), 60) == 0
