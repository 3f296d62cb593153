"""Stock, or the extension with gRPC front ends beside it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.http_client import KEEP_ALIVE_ENV, LoadError
from bench.server import MeasuredServer
from sglang_prefill_ext.local_server import server_env
from sglang_prefill_ext.process.ports import free_port

_START_S = 60.0


@contextmanager
def engine(model: Path, flags: Sequence[str], log: Path) -> Iterator[MeasuredServer]:
    """Run a server."""
    with MeasuredServer(model, flags, env=KEEP_ALIVE_ENV, log_path=log) as server:
        yield server


@contextmanager
def attachable_engine(
    model: Path, flags: Sequence[str], log: Path, front_ends: int
) -> Iterator[tuple[MeasuredServer, int]]:
    """Run a server and gRPC front ends that are attached to it.

    Yields:
        The server, and the port of the front ends.

    Raises:
        LoadError: the front ends do not come up.
    """
    with TemporaryDirectory(prefix="bench-attach-") as directory:
        attach = Path(directory) / "engine.sock"
        flags = [*flags, f"--prefill-only-attach={attach}"]
        with engine(model, flags, log) as server, _front_ends(attach, front_ends, log) as port:
            yield server, port


@contextmanager
def _front_ends(attach: Path, count: int, log: Path) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-c", "from sglang_prefill_ext.cli import main; main()"]
    command += ["serve-grpc", "--attach", str(attach), "--port", str(port)]
    command += ["--processes", str(count), "--no-reflection"]
    with log.with_suffix(".grpc.log").open("wb") as output:
        process = subprocess.Popen(command, env=server_env(), stdout=output, stderr=output)
    try:
        _wait_until_serving(port)
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait_until_serving(port: int) -> None:
    deadline = time.monotonic() + _START_S
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        while time.monotonic() < deadline:
            try:
                answer = check(health_pb2.HealthCheckRequest(), timeout=5, wait_for_ready=True)
            except grpc.RpcError:
                continue
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return
            time.sleep(0.1)
    raise LoadError(f"no gRPC front end serves on port {port} after {_START_S:g} s")
