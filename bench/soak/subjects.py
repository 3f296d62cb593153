"""Start what is put under load: one server, or engines behind a router."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.fleet.engines import cores_for, engines_on, router
from bench.http_client import LoadError, post_bytes
from bench.load import ask_each
from bench.server import MeasuredServer
from bench.status import extension_page

Reports = list[dict[str, Any]]
"""Reports of processes on their garbage collection."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Servers of this machine.

    Attributes:
        port: port that gets the requests.
        engines: ports of the engines, if `port` is a router's.
    """

    port: int
    engines: tuple[int, ...] = ()

    def packed(self) -> int:
        """Requests that were answered on the packed path so far."""
        page = extension_page(self.port)
        counters = (page if self.engines else page["frontend"])["counters"]
        return int(counters["requests"].get("packed", 0))

    def gc_reports(self) -> Reports:
        """Get the report of every process on its garbage collection so far.

        Raises:
            LoadError: a server does not answer, or some of its processes are silent.
        """
        if not self.engines:
            return _gc_reports(self.port)
        own = extension_page(self.port)["garbage_collection"]
        return [own, *(each for port in self.engines for each in _gc_reports(port))]


@contextmanager
def running(
    model: Path, engines: int, tell: Callable[[str], None], *flags: str
) -> Iterator[Subject]:
    """Run one server, or engines on one core each behind a router.

    Args:
        engines: number of engines; 0 for one server without a router.
        flags: flags of the server, or of every engine.
    """
    if engines:
        cores = cores_for(engines)
        with engines_on(model, cores, tell, *flags) as ports, router(ports) as routers:
            yield Subject(routers.port, tuple(ports))
        return
    log = model.parent / f"{model.name}-soak.log"
    args = ["--enable-prefill-only", *flags]
    with MeasuredServer(model, args, log_path=log) as server:
        yield Subject(server.port)


def _gc_reports(port: int) -> Reports:
    asked = post_bytes("/prefill_only/gc", b'{"action": "stats"}')
    answer = json.loads(ask_each(port, [asked])[0])
    if not answer["complete"]:
        raise LoadError("some processes did not report their garbage collection")
    reports: Reports = answer["processes"]
    return reports
