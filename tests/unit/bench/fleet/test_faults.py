"""Tests of the tools that judge a fleet under faults: schedule, answers, connections."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.command import RESULTS
from bench.fleet.faults.__main__ import save_faults_plot
from bench.fleet.faults.asks import Ask, End
from bench.fleet.faults.load import Load
from bench.fleet.faults.schedule import SHARES, Kind, draw_faults
from bench.fleet.faults.session import FaultsResult
from bench.fleet.faults.wires import wires_to
from bench.gate import difference
from tests.integration.support.client import wait_until

RIGHT = {"scores": [[0.25, 0.75]], "id": "a"}
ASK = Ask("/v1/score", b"{}", RIGHT)


def test_a_thousand_faults_have_their_shares_and_the_same_seed_draws_the_same() -> None:
    faults = draw_faults(1000, 25.0, seed=3)
    assert Counter(each.kind for each in faults) == SHARES
    assert faults == draw_faults(1000, 25.0, seed=3) != draw_faults(1000, 25.0, seed=4)
    assert 20 * 60 < sum(each.pause_s for each in faults) < 30 * 60


def test_the_picture_of_the_recorded_run_can_be_drawn_again(tmp_path: Path) -> None:
    last = json.loads((RESULTS / "fleet-faults.jsonl").read_text().splitlines()[-1])
    result = FaultsResult(**{each.name: last[each.name] for each in fields(FaultsResult)})
    save_faults_plot(tmp_path / "plot.png", result)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("count", [1, 7, 100])
def test_few_faults_are_as_many_as_asked_for(count: int) -> None:
    assert len(draw_faults(count, 1.0, seed=0)) == count


def test_engines_do_not_die_one_after_the_other() -> None:
    faults = draw_faults(1000, 25.0, seed=3)
    deaths = [n for n, each in enumerate(faults) if each.kind is Kind.ENGINE_KILLED]
    assert min(b - a for a, b in pairwise(deaths)) > 50


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (RIGHT | {"id": "b"}, ""),
        ({"scores": [[0.250009, 0.75]], "id": "a"}, ""),
        ({"scores": [[0.25002, 0.75]], "id": "a"}, r"answer.scores[0][0]"),
        ({"scores": [[0.25]], "id": "a"}, "answer.scores[0]: 1 entries"),
        ({"scores": [[0.25, float("nan")]], "id": "a"}, "answer.scores[0][1]"),
        ({"scores": None, "id": "a"}, "answer.scores"),
        ({"id": "a"}, "{'scores'}"),
    ],
)
def test_the_first_difference_of_answers_is_named(found: Any, named: str) -> None:
    said = difference(found, RIGHT, "answer")
    assert named in said
    assert bool(said) == bool(named)


@contextmanager
def answering(status: int, body: Any, dies: Callable[[], bool] = lambda: False) -> Iterator[int]:
    """A server that gives all the same answer, or closes the connection; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if dies():
                self.close_connection = True
                return
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "end"),
    [
        (200, RIGHT, End.RIGHT),
        (200, {"scores": [[0.3, 0.7]], "id": "a"}, End.WRONG),
        *((status, {}, End.CLEAR) for status in (429, 503, 504)),
        *((status, {}, End.WRONG) for status in (400, 404, 500, 502)),
    ],
)
def test_answers_are_judged(status: int, body: Any, end: End) -> None:
    with answering(status, body) as port, Load(port, [ASK], 2) as load:
        load.wait_more(4)
    assert set(load.ends()) == {end}
    assert bool(load.unwanted()) == (end is End.WRONG)


def test_a_connection_that_breaks_is_lost_unless_a_router_died() -> None:
    with answering(200, RIGHT, dies=lambda: True) as port, Load(port, [ASK], 1) as load:
        load.wait_more(2)
    assert set(load.ends()) == {End.LOST}
    deaths = iter([True] * 3)

    def dies() -> bool:
        return next(deaths, False)

    with (
        answering(200, RIGHT, dies) as port,
        Load(port, [ASK], 1, router_died=lambda _begin_s, _end_s: True) as load,
    ):
        load.wait_more(2)
    assert set(load.ends()) == {End.RIGHT}
    assert load.outcomes[0].again == 3


def test_what_breaks_until_the_deadline_is_a_clear_error() -> None:
    with (
        answering(200, RIGHT, dies=lambda: True) as port,
        Load(port, [ASK], 1, deadline_s=0.3, router_died=lambda _begin_s, _end_s: True) as load,
    ):
        load.wait_more(1)
    assert load.outcomes[0].end is End.CLEAR
    assert "no router" in load.outcomes[0].why


def test_a_wire_is_silent_and_cut_and_carries_again() -> None:
    with (
        answering(200, RIGHT) as port,
        wires_to([port]) as (wire,),
        Load(wire.port, [ASK], 1) as load,
    ):
        load.wait_more(3)
        wire.silence()
        wire.cut()
        wait_until(lambda: load.ends()[End.LOST] > 0)
        wire.resume()
        load.wait_more(3)
    assert load.ends()[End.LOST] == 1
    assert load.ends()[End.RIGHT] >= 6
