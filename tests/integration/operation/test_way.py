"""The files that one plain scoring request runs through in a server are those of the docs."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from sglang_prefill_ext.local_server import LocalServer
from tests.conftest import TRACES
from tests.integration.programs.in_servers.sitecustomize import LEFT_IN_FLIGHT
from tests.integration.support.client import Client, Json, score_body, wait_until
from tests.integration.support.processes import scheduler_pid

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

OURS = "sglang_prefill_ext."
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = ROOT / "sglang_prefill_ext"
MOST_CROSSINGS = 19
REQUESTS = range(3, 30)
"""Calls that are not made for each request, such as those of a timer, are no part of the way. More
requests than the least number are recorded if files are left that the page does not list, because
a timer may fire in each of a few slow requests."""

Edges = dict[tuple[str, str], int]
"""Modules whose functions call and are called, and when that was first, in ns."""


def body(seed: int) -> Json:
    return score_body(seed, 62, [1], apply_softmax=True, return_token_logprobs=False)


def traced(client: Client, server: LocalServer, seed: int) -> Edges:
    """The recorded calls of one request in the processes of front end and scheduler."""
    front_end = client.status()["frontend"]["pid"]
    pids = front_end, scheduler_pid(server)
    begun, ended = ([TRACES / f"{pid}.{kind}" for pid in pids] for kind in ("on", "json"))
    for file in (*begun, *ended):
        file.unlink(missing_ok=True)

    def switch(files: list[Path]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGUSR2)
        wait_until(lambda: all(file.exists() for file in files))

    switch(begun)
    assert client.post("/v1/score", body(seed)).status_code == 200
    switch(ended)
    edges: Edges = {}
    for file in ended:
        for caller, callee, first in json.loads(file.read_text()):
            edges[caller, callee] = min(first, edges.get((caller, callee), first))
    return edges


@pytest.fixture(scope="module")
def edges(client: Client, server: LocalServer) -> Edges:
    client.post("/v1/score", body(700))
    found = traced(client, server, 701)
    for number in range(1, REQUESTS.stop):
        if number >= REQUESTS.start and modules(found) <= {*documented()}:
            break
        other = traced(client, server, 701 + number)
        found = {edge: when for edge, when in found.items() if edge in other}
    return found


def modules(edges: Edges) -> set[str]:
    """Our files with a called function, in the form in which the page names them."""
    names = {callee for _, callee in edges if callee.startswith(OURS)}
    paths = (name.removeprefix(OURS).replace(".", "/") for name in names)
    return {path + "/__init__" * (PACKAGE / path).is_dir() for path in paths}


def documented() -> list[str]:
    """The files that the page lists; a name without a folder is in that of the name before."""
    text = PAGE.read_text().split("\n### File by file\n")[1].split("\n## ")[0]
    found, folder = [], Path()
    for name in re.findall(r"`([\w/]+)`", text.split("\n1. ")[1]):
        inside = (folder / name).with_suffix(".py")
        path = inside if (PACKAGE / inside).exists() else Path(f"{name}.py")
        if len(path.parts) <= len(Path(name).parts):
            folder = path.parent
        found.append(path.with_suffix("").as_posix())
    return found


def test_forwards_of_the_shared_server_are_in_flight_between_steps(server: LocalServer) -> None:
    assert LEFT_IN_FLIGHT in server.log_path.read_text()


def test_the_page_lists_the_files_of_the_way(edges: Edges) -> None:
    assert sorted(documented()) == sorted(modules(edges))


def test_control_crosses_the_border_seldom(edges: Edges) -> None:
    """A crossing is a pair of our module and SGLang's of which one calls the other."""
    crossings = [
        edge for edge in edges if edge[0] and sum(name.startswith(OURS) for name in edge) == 1
    ]
    assert len(crossings) <= MOST_CROSSINGS, crossings
