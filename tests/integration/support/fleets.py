"""Runs routers of a fleet for tests, and reads what they report of their engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.fleet.routers import RouterProcesses, running_routers
from tests.integration.support.client import Client, wait_until
from tests.integration.support.own_server import LOGS, Serving, serving


class Routers(NamedTuple):
    processes: RouterProcesses
    client: Client

    def replicas(self) -> dict[str, str]:
        """Health by URL."""
        return {each["url"]: each["health"] for each in self.client.status()["replicas"]}

    def counts(self) -> dict[str, int]:
        return fleet_counts(self.client)

    def wait_up(self, *urls: str) -> None:
        """Wait until exactly these engines are up."""

        def up() -> bool:
            return {url for url, health in self.replicas().items() if health == "up"} == {*urls}

        wait_until(up)


def fleet_counts(client: Client) -> dict[str, int]:
    """The routers' counters, without those that are still 0."""
    counts: dict[str, int] = client.status()["counters"]["fleet"]
    return counts


def wait_divided(client: Client, ask: Callable[[], object]) -> None:
    """Ask until a lone request is divided.

    On a busy machine an engine may seem stopped, or may have been measured as slow at its start. So
    after each lone request several are sent at the same time: all engines answer, which measures
    their speeds again.
    """

    def divided() -> bool:
        before = fleet_counts(client).get("divided", 0)
        ask()
        if fleet_counts(client)["divided"] > before:
            return True
        with ThreadPoolExecutor() as pool:
            for asked in [pool.submit(ask) for _ in range(4)]:
                asked.result()
        return False

    wait_until(divided)


@contextmanager
def two_engines(model: Path, name: str, *flags: str) -> Iterator[tuple[Serving, Serving]]:
    with serving(model, f"{name}a", *flags) as a, serving(model, f"{name}b", *flags) as b:
        yield a, b


@contextmanager
def fleet_of(urls: Sequence[str], name: str, *flags: str) -> Iterator[Routers]:
    """Run ``sglang-prefill fleet``; the log is ``.cache/logs/<name>.log``."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with (
        running_routers(urls, *flags, log_path=LOGS / f"{name}.log") as processes,
        client_at(processes.base_url) as client,
    ):
        yield Routers(processes, client)


@contextmanager
def client_at(url: object) -> Iterator[Client]:
    client = Client(str(url))
    with client.http:
        yield client
