from __future__ import annotations

import asyncio
import json
import time

import numpy as np
import pytest

from bench.http_client import LoadError, post_bytes
from bench.load import Measurement, Window, closed_loop, open_loop, poisson_arrivals, run_loop
from tests.unit.bench.stand_in import StandIn


def pool(size: int) -> list[bytes]:
    bodies = ({"query": [n], "items": [[1]], "return_token_logprobs": False} for n in range(size))
    return [post_bytes("/v1/score", json.dumps(body).encode()) for body in bodies]


def first_score(answer: bytes) -> float:
    score: float = json.loads(answer)["scores"][0][0]
    return score


def test_closed_loop_counts_what_follows_the_warm_up(stand_in: StandIn) -> None:
    seen = run_loop(closed_loop(stand_in.port, pool(5), 2, Window(0.0, 6)))
    assert len(seen.latencies_s) == 6
    assert 8 <= seen.sent <= 9  # two warm up, and one may still be under way at the end
    assert min(seen.latencies_s) > 0.0
    assert seen.requests_per_s == pytest.approx(6 / seen.seconds)
    assert seen.generator_cpu_s > 0.0


def test_a_window_ends_by_time_and_by_count() -> None:
    window = Window(seconds=2.0, min_requests=3)
    assert not window.is_over(Measurement(seconds=9.0, latencies_s=[0.1] * 2))
    assert not window.is_over(Measurement(seconds=1.9, latencies_s=[0.1] * 9))
    assert window.is_over(Measurement(seconds=2.0, latencies_s=[0.1] * 3))


def test_closed_loop_keeps_each_answer_under_its_number(stand_in: StandIn) -> None:
    seen = run_loop(closed_loop(stand_in.port, pool(7), 3, Window(0.0, 14)))
    assert sorted(seen.answers) == list(range(7))
    for number, answer in seen.answers.items():
        assert first_score(answer) == pytest.approx((number + 1) / 997)


def test_closed_loop_says_which_request_ended_when(stand_in: StandIn) -> None:
    before = time.perf_counter()
    seen = run_loop(closed_loop(stand_in.port, pool(3), 1, Window(0.0, 6)))
    assert seen.numbers == [1, 2, 0, 1, 2, 0]  # the first of all warms up
    assert seen.ended_s == sorted(seen.ended_s)
    assert before < seen.ended_s[0]
    assert seen.ended_s[-1] - seen.ended_s[0] <= seen.seconds


def test_closed_loop_keeps_its_clients_busy(stand_in: StandIn) -> None:
    stand_in.answers_together = 4  # nothing is answered before four requests wait
    seen = run_loop(closed_loop(stand_in.port, pool(3), 4, Window(0.0, 1)))
    assert seen.sent >= 5


def test_open_loop_sends_at_every_arrival_and_counts_from_it(stand_in: StandIn) -> None:
    stand_in.answers_together = 4  # so it sends without waiting for answers
    arrivals = np.array([0.0, 0.01, 0.02, 0.03])
    seen = run_loop(open_loop(stand_in.port, pool(3), arrivals))
    assert seen.sent == len(seen.latencies_s) == 4
    assert sorted(seen.answers) == [0, 1, 2]
    assert sorted(seen.numbers) == [0, 0, 1, 2]
    assert seen.ended_s == sorted(seen.ended_s)
    begin_s = seen.ended_s[-1] - seen.seconds
    due = np.array(seen.ended_s) - np.array(seen.latencies_s) - begin_s
    assert sorted(due) == pytest.approx(arrivals, abs=1e-3)


def test_open_loop_counts_the_wait_of_a_late_generator(stand_in: StandIn) -> None:
    overdue = np.array([-1.0, 0.0])
    seen = run_loop(open_loop(stand_in.port, pool(1), overdue))
    assert max(seen.latencies_s) >= 1.0


def test_arrivals_are_poisson_at_the_rate_and_the_same_for_a_seed() -> None:
    arrivals = poisson_arrivals(50.0, Window(100.0, 1), seed=3)
    gaps = np.diff(arrivals, prepend=0.0)
    assert len(arrivals) == 5000
    assert (gaps > 0).all()
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.1)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # an exponential's are equal
    assert (arrivals == poisson_arrivals(50.0, Window(100.0, 1), seed=3)).all()
    assert len(poisson_arrivals(0.1, Window(1.0, 20), seed=0)) == 20


@pytest.mark.parametrize("clients", [1, 4])
def test_a_failing_server_stops_a_closed_loop(stand_in: StandIn, clients: int) -> None:
    stand_in.status = 503
    with pytest.raises(LoadError, match="503"):
        run_loop(closed_loop(stand_in.port, pool(3), clients, Window(5.0, 1)))


def test_a_failing_server_stops_an_open_loop(stand_in: StandIn) -> None:
    stand_in.status = 503
    with pytest.raises(LoadError, match="503"):
        run_loop(open_loop(stand_in.port, pool(3), np.array([0.0, 0.01, 60.0])))


def test_the_first_failure_is_raised_from_loops_side_by_side(stand_in: StandIn) -> None:
    stand_in.status = 503

    async def side_by_side() -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(closed_loop(stand_in.port, pool(3), 2, Window(5.0, 1)))

    with pytest.raises(LoadError, match="503"):
        run_loop(side_by_side())


def test_percentiles_are_in_ms() -> None:
    seen = Measurement(seconds=2.0, latencies_s=[0.001 * n for n in range(1, 102)])
    assert seen.percentile_ms(50) == pytest.approx(51.0)
    assert seen.percentile_ms(99) == pytest.approx(100.0)
    assert seen.requests_per_s == 50.5
