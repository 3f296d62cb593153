from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.oneshot.budget import ForwardBudget
from sglang_prefill_ext.oneshot.job import Job
from sglang_prefill_ext.oneshot.policy import policy_of
from sglang_prefill_ext.oneshot.runtime import Ended, PackedRuntime
from sglang_prefill_ext.wire.result import PackedResult
from tests.unit.oneshot.jobs import IdleExecutor, request

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang_prefill_ext.compat.messages import PackedRowsReq
    from sglang_prefill_ext.compat.runtime_setup import result_messages, tokens_received


def job(rid: str, route: str | None) -> Job:
    return Job(rid, request([], [5]).pack(), reply_to=SimpleNamespace(http_worker_ipc=route))


@pytest.mark.parametrize(
    "routes", [[None], [None] * 4, ["ipc://a", "ipc://b", "ipc://a"]], ids=["one", "four", "two"]
)
def test_each_front_end_gets_its_results_in_one_message(routes: list[str | None]) -> None:
    results = {f"r{number}": PackedResult("ok", str(number)) for number in range(len(routes))}
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
    message = PackedRowsReq.of("rid", request([5] * 20, [6, 7], [8]).pack(), RequestOptions())
    runtime.submit("rid", message.rows(0, 0), message)
    runtime.step()
    assert [result.status for _, result in ended] == ["ok"]
    assert tokens_received(ended) == len(message.input_ids) == 23
