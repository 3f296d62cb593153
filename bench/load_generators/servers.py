"""Start stock, or the extension with gRPC front ends beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.http_client import LoadError
from bench.load_generators.wires import Wire
from bench.server import MeasuredServer, running_command
from sglang_prefill_ext.process.ports import free_port

_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """A running server.

    Attributes:
        http, grpc: ports; 0 where there are no gRPC front ends.
    """

    http: int
    grpc: int = 0

    def port(self, wire: Wire) -> int:
        """The port at which the server accepts requests of a wire."""
        return self.grpc if wire is Wire.GRPC else self.http


@contextmanager
def running(model: Path, flags: Sequence[str], log: Path, front_ends: int) -> Iterator[Target]:
    """Run a server, and gRPC front ends that are attached to it.

    Args:
        front_ends: how many; 0 for none.

    Raises:
        LoadError: the front ends do not come up.
    """
    with TemporaryDirectory(prefix="bench-attach-") as directory, ExitStack() as stack:
        attach = Path(directory) / "engine.sock"
        if front_ends:
            flags = [*flags, f"--prefill-only-attach={attach}"]
        server = MeasuredServer(model, flags, log_path=log)
        http = stack.enter_context(server).port
        beside = _front_ends(attach, front_ends, log) if front_ends else nullcontext(0)
        yield Target(http, stack.enter_context(beside))


@contextmanager
def _front_ends(attach: Path, count: int, log: Path) -> Iterator[int]:
    port = free_port()
    flags = (f"--attach={attach}", f"--port={port}", f"--processes={count}", "--no-reflection")
    with running_command("serve-grpc", *flags, log=log.with_suffix(".grpc.log")):
        _wait_until_serving(port)
        yield port


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
