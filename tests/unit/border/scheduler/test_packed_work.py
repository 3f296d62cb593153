from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_prefill_ext.border.messages import PackedRowsReq
from sglang_prefill_ext.border.scheduler.packed_work import (
    PackedWork,
    RuntimeSetup,
    result_messages,
    tokens_received,
)
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.forward.expert_blocks import ExpertUse
from sglang_prefill_ext.forward.graphs.plan import GraphUse
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.graph_room import NO_GRAPHS, GraphCost
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.policy import policy_of
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from sglang_prefill_ext.scheduling.stats import Account, ExecutionClass
from sglang_prefill_ext.wire.packed import PackedResult, to_bytes
from sglang_prefill_ext.wire.status import Status
from tests.unit.attach.engines import StubCollector
from tests.unit.scheduling.jobs import IdleExecutor, request

BUDGET = ForwardBudget(1000)
CONFIG = PrefillOnlyConfig(launch_tokens=6, decode_step_tokens=4, decode_slowdown=2)
"""Each decode step allows 4 tokens; a forward of n tokens costs 6 + n."""

METRICS_OFF = SimpleNamespace(current_scheduler_metrics_enabled=False)


def scheduler(*, replays_graphs: bool = False) -> Any:
    runner = SimpleNamespace(decode_cuda_graph_captured=replays_graphs)
    return SimpleNamespace(
        metrics_collector_context=METRICS_OFF,
        metrics_collector=None,
        tp_worker=SimpleNamespace(model_runner=runner),
    )


def work_of(stock: Any, runtime: PackedRuntime, config: PrefillOnlyConfig) -> PackedWork:
    setup = RuntimeSetup(runtime, GraphUse(), ExpertUse())
    return PackedWork(stock, setup, config, StubCollector())


NOW_MS = 1e12


class Answers(list[str]):
    """Ids of the jobs that were answered."""

    def __call__(self, ended: Sequence[Ended]) -> None:
        self.extend(job.rid for job, _ in ended)


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def work(answers: Answers) -> PackedWork:
    runtime = PackedRuntime(IdleExecutor(), answers, policy_of(CONFIG, BUDGET, launch_tokens=1))
    return work_of(scheduler(), runtime, CONFIG)


def submit(work: PackedWork, rid: str, tokens: int, deadline_ms: float | None = None) -> None:
    rows = request([], [9] * tokens).pack()
    work.runtime.submit(rid, rows, None, deadline_ms=deadline_ms)


def stock_batch(*, extend_tokens: int = 0, requests: int = 0) -> Any:
    mode = SimpleNamespace(is_extend=lambda: extend_tokens > 0)
    return SimpleNamespace(
        forward_mode=mode, extend_num_tokens=extend_tokens or None, batch_size=lambda: requests
    )


def test_without_generations_a_forward_goes_first_at_once(
    work: PackedWork, answers: Answers
) -> None:
    submit(work, "a", 6)
    assert work.step(decoding=False)
    assert answers == ["a"]
    assert not work.step(decoding=False)


def test_with_generations_a_forward_waits_until_it_is_paid_for(
    work: PackedWork, answers: Answers
) -> None:
    submit(work, "a", 6)
    assert [work.step(decoding=True) for _ in range(3)] == [False, False, True]
    assert answers == ["a"]


@pytest.mark.parametrize(
    ("adapter", "tokens", "waits"), [("", 6, 2), ("", 17, 5), ("a", 6, 4), ("a", 17, 5)]
)
def test_a_forward_that_no_graph_replays_has_to_be_paid_for_as_a_whole(
    answers: Answers, adapter: str, tokens: int, waits: int
) -> None:
    graphs = GraphCost(tokens=16, eager_tokens=20)
    policy = policy_of(CONFIG, BUDGET, launch_tokens=1, graphs=graphs)
    work = work_of(scheduler(), PackedRuntime(IdleExecutor(), answers, policy), CONFIG)
    rows = replace(request([], [9] * tokens), adapter=adapter).pack()
    work.runtime.submit("a", rows, None)
    assert [work.step(decoding=True) for _ in range(waits + 1)] == [*[False] * waits, True]


@pytest.mark.parametrize("beside_stock", [False, True])
def test_a_forward_waits_only_where_it_may(
    work: PackedWork, answers: Answers, monkeypatch: pytest.MonkeyPatch, beside_stock: bool
) -> None:
    monkeypatch.setattr(PackedRuntime, "may_wait", True)
    submit(work, "a", 3)
    assert work.step(decoding=False, beside_stock=beside_stock) is beside_stock
    assert answers == (["a"] if beside_stock else [])
    monkeypatch.setattr(PackedRuntime, "may_wait", False)
    assert work.step(decoding=False) is not beside_stock
    assert answers == ["a"]


@pytest.mark.parametrize("is_short", [False, True])
def test_where_slots_are_short_no_forward_is_in_flight_beside_generations(
    work: PackedWork, answers: Answers, is_short: bool
) -> None:
    executor = IdleExecutor()
    executor.asynchronous = True
    policy = policy_of(CONFIG, BUDGET, launch_tokens=1)
    work.runtime = PackedRuntime(executor, answers, policy)
    work.setup = work.setup._replace(is_short=lambda: is_short)
    submit(work, "a", 6)
    assert work.step(decoding=False)
    work.make_room()
    assert work.runtime.in_flight == (not is_short)
    assert answers == (["a"] if is_short else [])


def test_the_longest_wait_is_a_flag() -> None:
    config = PrefillOnlyConfig(decode_slowdown=1, max_wait_steps=2)
    runtime = PackedRuntime(IdleExecutor(), Answers(), policy_of(config, BUDGET, launch_tokens=1))
    work = work_of(scheduler(), runtime, config)
    submit(work, "a", 3)
    assert [work.step(decoding=True) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("given", "replays_graphs", "packed_graphs", "step_tokens"),
    [
        (7, True, NO_GRAPHS, 7),
        (0, False, NO_GRAPHS, 100),
        (0, True, NO_GRAPHS, 25),
        (0, True, GraphCost(64, 700), 100),  # both launches were measured
        (0, False, GraphCost(64, 700), 700),
    ],
)
def test_a_decode_step_costs_what_a_launch_does_and_less_as_a_graph(
    given: int, replays_graphs: bool, packed_graphs: GraphCost, step_tokens: int
) -> None:
    config = PrefillOnlyConfig(decode_step_tokens=given)
    policy = policy_of(config, BUDGET, launch_tokens=100, graphs=packed_graphs)
    runtime = PackedRuntime(IdleExecutor(), Answers(), policy)
    stock = scheduler(replays_graphs=replays_graphs)
    work = work_of(stock, runtime, config)
    assert work.policy.step_tokens == step_tokens


@pytest.mark.parametrize(
    ("batch", "packed", "account"),
    [
        (None, 5, (ExecutionClass.ONE_SHOT, Account(1, 5, 0))),
        (stock_batch(requests=3), 0, (ExecutionClass.DECODE, Account(1, 0, 3))),
        (stock_batch(extend_tokens=40, requests=1), 5, (ExecutionClass.MIXED, Account(1, 5, 40))),
    ],
)
def test_an_iteration_is_accounted_for(
    work: PackedWork, batch: Any, packed: int, account: tuple[ExecutionClass, Account]
) -> None:
    before = work.runtime.stats.tokens_computed
    if packed:
        submit(work, "a", packed)
        work.step(decoding=False)
    work.record_iteration(before, batch)
    name, wanted = account
    assert work.accounts.of[name] == wanted


def test_deadlines_of_arriving_and_of_queued_requests_are_looked_at(work: PackedWork) -> None:
    assert not work.is_late(NOW_MS, [])
    assert not work.is_late(NOW_MS, [NOW_MS + 1])
    assert work.is_late(NOW_MS, [NOW_MS + 1, NOW_MS - 1])
    submit(work, "a", 6, deadline_ms=NOW_MS + 100)
    assert not work.is_late(NOW_MS + 99, [])
    assert not work.is_late(NOW_MS + 101, []), "the queue is looked at every 20 ms only"
    assert work.is_late(NOW_MS + 120, [])
    assert work.runtime.expire(NOW_MS + 120, work.runtime.deadline_pace) == ["a"]
    assert not work.is_late(NOW_MS + 200, [])


def test_a_clock_that_is_set_back_stops_nothing(work: PackedWork) -> None:
    submit(work, "a", 6, deadline_ms=NOW_MS)
    assert work.is_late(NOW_MS + 10_000, [])
    assert work.is_late(NOW_MS + 5_000, [])


def job(rid: str, route: str | None) -> Job:
    return Job(rid, request([], [5]).pack(), reply_to=SimpleNamespace(http_worker_ipc=route))


@pytest.mark.parametrize(
    "routes", [[None], [None] * 4, ["ipc://a", "ipc://b", "ipc://a"]], ids=["one", "four", "two"]
)
def test_each_front_end_gets_its_results_in_one_message(routes: list[str | None]) -> None:
    results = {f"r{number}": PackedResult(Status.OK, str(number)) for number in range(len(routes))}
    ended = [
        (job(rid, route), result)
        for route, (rid, result) in zip(routes, results.items(), strict=True)
    ]
    messages = result_messages(ended)
    assert [message.http_worker_ipc for message in messages] == list(dict.fromkeys(routes))
    for message in messages:
        mine = [
            rid
            for rid, route in zip(results, routes, strict=True)
            if route == message.http_worker_ipc
        ]
        assert message.results == {rid: results[rid] for rid in mine}


def test_no_results_are_no_message() -> None:
    assert result_messages([]) == []


@pytest.mark.parametrize("causal", [True, False])
def test_a_controller_hears_of_as_many_tokens_as_it_has_sent(causal: bool) -> None:
    """Otherwise schedulers of an encoder would seem ever less loaded, the more they compute."""
    executor, ended = IdleExecutor(), list[Ended]()
    executor.causal = causal
    policy = policy_of(PrefillOnlyConfig(), ForwardBudget(100), launch_tokens=1)
    runtime = PackedRuntime(executor, ended.extend, policy)
    rows = request([5] * 20, [6, 7], [8]).pack()
    message = PackedRowsReq(rid="rid", row_bytes=to_bytes(rows))
    runtime.submit("rid", rows, message)
    runtime.step()
    assert [result.status for _, result in ended] == ["ok"]
    assert tokens_received(ended) == len(message.input_ids) == 23
