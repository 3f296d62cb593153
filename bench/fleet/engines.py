"""Start engines, each on one core, and routers over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from bench.cores import SINGLE_THREADED
from bench.fleet.routers import RouterProcesses, running_routers
from bench.http_client import KEEP_ALIVE_ENV
from bench.score.plan import QUIET_ARGS
from bench.server import MeasuredServer
from sglang_prefill_ext.errors import ServerStartError
from sglang_prefill_ext.shared_device.placement import usable_cores

_READY_S = 300.0
_KEPT_S = KEEP_ALIVE_ENV["SGLANG_TIMEOUT_KEEP_ALIVE"]


def engine(
    model: Path, name: str, *flags: str, env: Mapping[str, str] = SINGLE_THREADED
) -> MeasuredServer:
    """Return an engine with the plugin; its log is written beside the model."""
    args = ["--dtype", "float32", "--enable-prefill-only", *QUIET_ARGS, *flags]
    log = model.parent / f"{name}.log"
    return MeasuredServer(model, args, env={**KEEP_ALIVE_ENV, **env}, log_path=log)


def cores_for(engines: int) -> list[int]:
    """Return a core for each engine; engines share cores if there are fewer cores."""
    cores = sorted(usable_cores())
    return [cores[number % len(cores)] for number in range(engines)]


@contextmanager
def engines_on(
    model: Path, cores: Sequence[int], tell: Callable[[str], None], *flags: str
) -> Iterator[list[int]]:
    """Run an engine on each of these cores; yields their ports.

    All processes of an engine share its core.
    """
    with ExitStack() as stack:
        ports = []
        for number, core in enumerate(cores):
            tell(f"starting engine {number + 1} of {len(cores)}")
            server = engine(model, f"engine-{number}", *flags)
            server.command = ["taskset", "--cpu-list", str(core), *server.command]
            ports.append(stack.enter_context(server).port)
        yield ports


@contextmanager
def router(engine_ports: Sequence[int], processes: int = 1) -> Iterator[RouterProcesses]:
    """Run ``sglang-prefill fleet`` over engines of this machine.

    Raises:
        ServerStartError: the router does not start, or does not find all engines in time.
    """
    urls = [f"http://127.0.0.1:{each}" for each in engine_ports]
    flags = "--processes", str(processes), "--keep-alive-s", _KEPT_S
    with running_routers(urls, *flags) as routers:
        deadline = time.monotonic() + _READY_S
        while len(routers.listening()) < processes or not _has_all(routers.port, len(urls)):
            if time.monotonic() > deadline:
                raise ServerStartError(f"the router over {', '.join(urls)} has not found them all.")
            time.sleep(0.2)
        yield routers


def parts_and_requests(port: int) -> tuple[int, int]:
    """Parts that a router has sent, and requests that it got; 0 and 0 for an engine."""
    counts = _status(port).get("counters", {}).get("fleet", {})
    return counts.get("parts", 0), counts.get("requests", 0)


def _has_all(port: int, engines: int) -> bool:
    try:
        page = _status(port)
    except httpx.TransportError:
        return False
    settled = page["tokenizer"].get("ready", True)
    return settled and sum(each["health"] == "up" for each in page["replicas"]) == engines


def _status(port: int) -> dict[str, Any]:
    page: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port}/prefill_only/status").json()
    return page
