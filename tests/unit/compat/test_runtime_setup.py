from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

from sglang_prefill_ext.oneshot.job import Job
from sglang_prefill_ext.wire.result import PackedResult
from tests.unit.oneshot.jobs import request

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang_prefill_ext.compat.runtime_setup import result_messages


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
