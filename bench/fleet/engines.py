"""Start engines, each on one core, and routers over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path

from bench.cores import SINGLE_THREADED
from bench.fleet.routers import RouterProcesses, running_routers
from bench.score.plan import QUIET_ARGS
from bench.server import KEEP_ALIVE_S, MeasuredServer
from bench.status import status_page
from sglang_prefill_ext.errors import ServerStartError
from sglang_prefill_ext.shared_device.placement import usable_cores

_READY_S = 300.0


def engine(
    model: Path, name: str, *flags: str, env: Mapping[str, str] = SINGLE_THREADED
) -> MeasuredServer:
    """Return an engine with the plugin; its log is written beside the model."""
    args = ["--dtype", "float32", "--enable-prefill-only", *QUIET_ARGS, *flags]
    log = model.parent / f"{name}.log"
    return MeasuredServer(model, args, env=env, log_path=log)


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
    flags = "--processes", str(processes), "--keep-alive-s", str(KEEP_ALIVE_S)
    with running_routers(urls, *flags) as routers:
        deadline = time.monotonic() + _READY_S
        while len(routers.listening()) < processes or not _has_all(routers.port, len(urls)):
            if time.monotonic() > deadline:
                raise ServerStartError(f"the router over {', '.join(urls)} has not found them all.")
            time.sleep(0.2)
        yield routers


def parts_and_requests(port: int) -> tuple[int, int]:
    """Parts that a router has sent, and requests that it got; 0 and 0 for an engine."""
    counts = (status_page(port) or {}).get("counters", {}).get("fleet", {})
    return counts.get("parts", 0), counts.get("requests", 0)


def _has_all(port: int, engines: int) -> bool:
    try:
        page = status_page(port)
    except (OSError, HTTPException):
        return False
    if page is None or not page["tokenizer"].get("ready", True):
        return False
    return [each["health"] for each in page["replicas"]].count("up") == engines
