from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.http_client import LoadError, post_bytes
from bench.score.plan import Case, Plan
from bench.score.session import ModelRun, Servers
from bench.server import empty_cache
from bench.workloads import ClosedLoop, Shape
from tests.unit.bench.stand_in import StandIn


def case_of(size: int) -> Case:
    bodies = ({"query": [n], "items": [[1]], "return_token_logprobs": False} for n in range(size))
    pool = [post_bytes("/v1/score", json.dumps(body).encode()) for body in bodies]
    return Case(Shape(1, 1, 1), 1.0, pool, pool[:1])


@pytest.mark.parametrize(("radix_cache", "emptied"), [(True, 8), (False, 0)])
def test_every_measurement_begins_with_an_empty_prefix_cache(
    stand_in: StandIn, radix_cache: bool, emptied: int
) -> None:
    loads = (ClosedLoop(1), ClosedLoop(2))
    plan = Plan(loads, 0.0, 2, ("--on",), radix_cache=radix_cache)
    server: Any = SimpleNamespace(port=stand_in.port, paused=nullcontext)
    run = ModelRun(Path("model"), plan, lambda _: None, Path())
    run.measure(Servers(server, server), [case_of(30)])
    assert len(run.results) == 8
    assert stand_in.emptied == emptied


@pytest.mark.parametrize(("radix_cache", "repeated"), [(False, False), (True, True)])
def test_requests_may_repeat_where_no_cache_has_them_or_they_are_meant_to(
    stand_in: StandIn, radix_cache: bool, repeated: bool
) -> None:
    plan = Plan((ClosedLoop(1),), 0.0, 1, (), radix_cache=radix_cache, repeated=repeated)
    server: Any = SimpleNamespace(port=stand_in.port, paused=nullcontext)
    run = ModelRun(Path("model"), plan, lambda _: None, Path())
    run.measure(Servers(server, server), [case_of(8)])
    assert len(run.results) == 2


def test_a_request_that_a_cache_has_as_a_whole_ends_the_run(stand_in: StandIn) -> None:
    plan = Plan((ClosedLoop(1),), 0.0, 1, (), radix_cache=True)
    server: Any = SimpleNamespace(port=stand_in.port, paused=nullcontext)
    run = ModelRun(Path("model"), plan, lambda _: None, Path())
    with pytest.raises(LoadError, match="21 requests were sent, but only 20 are different"):
        run.measure(Servers(server, server), [case_of(20)])
    assert not run.results


def test_a_cache_that_cannot_be_emptied_ends_the_run(stand_in: StandIn) -> None:
    stand_in.status = 400
    with pytest.raises(LoadError, match="as asked"):
        empty_cache(stand_in.port)
