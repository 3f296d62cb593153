"""Compare the cost of sending rows to an engine by Ray Serve and by our own HTTP client.

``python -m bench.fleet.carriers`` sends a body as a router does, to a process that answers at once.
Nothing is computed, so only the transport is measured, in both processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import ray
from ray import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sglang_prefill_ext.attach import carrier
from sglang_prefill_ext.attach.carrier import PartAnswer
from sglang_prefill_ext.fleet.replica import Replica
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.process.ports import free_port
from sglang_prefill_ext.wire.packed import PackedResult
from sglang_prefill_ext.wire.status import Status

BODY = os.urandom(30_000)
ANSWER = carrier.encode(PartAnswer(PackedResult(Status.OK, values=bytes(800), forwards=1), 0))
CALLS = 2000
AT_ONCE = 16

Ask = Callable[[], Awaitable[object]]


class Echo:
    """A deployment that answers at once."""

    async def rows(self, body: bytes) -> bytes:
        return ANSWER


async def _rows(request: Request) -> Response:
    await request.body()
    return Response(ANSWER, media_type=carrier.MSGPACK)


APP = Starlette(routes=[Route(carrier.ROWS_PATH, _rows, methods=["POST"])])


@asynccontextmanager
async def over_http() -> AsyncIterator[Ask]:
    """Our transport: a router's HTTP client, and uvicorn as SGLang uses it in another process."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "bench.fleet.carriers:APP", "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*command, "--log-level", "error")
    try:
        replica = Replica(f"http://127.0.0.1:{port}")
        ask = lambda: replica.ask(BODY, RequestOptions())  # noqa: E731
        await _answered(ask)
        yield ask
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def over_serve() -> AsyncIterator[dict[str, Ask]]:
    """Ray Serve: a plain call of a handle, and a call after a replica was chosen."""
    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=4)
    serve.start(proxy_location="Disabled")
    try:
        deployment = serve.deployment(Echo, max_ongoing_requests=1000)
        handle = await asyncio.to_thread(serve.run, deployment.bind(), name="b", route_prefix=None)
        handle = handle.options(method_name="rows")

        async def chosen() -> object:
            async with handle.choose_replica() as selection:
                return await handle.dispatch(selection, BODY)

        await _answered(chosen)
        yield {"handle.remote": lambda: handle.remote(BODY), "choose_replica, dispatch": chosen}
    finally:
        serve.shutdown()
        ray.shutdown()


async def _answered(ask: Ask) -> None:
    """Wait until a call is answered."""
    deadline = time.monotonic() + 60
    while True:
        try:
            await ask()
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


async def measured(name: str, ask: Ask) -> dict[str, object]:
    """Time calls one after the other, then several at once."""

    async def one() -> float:
        begin = time.perf_counter()
        await ask()
        return time.perf_counter() - begin

    for _ in range(CALLS // 10):
        await one()
    cpu_s = time.process_time()
    alone_ms = np.array([await one() for _ in range(CALLS)]) * 1e3
    cpu_s = time.process_time() - cpu_s
    begin = time.perf_counter()
    left = iter(range(CALLS))

    async def many() -> None:
        for _ in left:
            await one()

    await asyncio.gather(*(many() for _ in range(AT_ONCE)))
    return {
        "carrier": name,
        "body_bytes": len(BODY),
        "p50_ms": round(float(np.percentile(alone_ms, 50)), 3),
        "p99_ms": round(float(np.percentile(alone_ms, 99)), 3),
        "caller_cpu_ms": round(cpu_s / CALLS * 1e3, 3),
        f"calls_per_s_{AT_ONCE}_at_once": round(CALLS / (time.perf_counter() - begin)),
    }


async def main() -> None:
    async with over_http() as ask, over_serve() as asks:
        ways = {"HTTP, as routers use it": ask, **asks}
        for _ in range(3):
            for name, each in ways.items():
                print(json.dumps(await measured(name, each)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
