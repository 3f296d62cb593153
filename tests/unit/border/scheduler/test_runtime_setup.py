from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.model_executor import cuda_graph_config
from sglang.srt.model_executor.cuda_graph_config import CudaGraphConfig, PhaseConfig

from sglang_prefill_ext.border.messages import PackedRowsReq
from sglang_prefill_ext.border.scheduler import runtime_setup
from sglang_prefill_ext.border.scheduler.packed_work import result_messages, tokens_received
from sglang_prefill_ext.config import AttentionWay, PrefillOnlyConfig
from sglang_prefill_ext.forward.graphs.plan import GraphUse
from sglang_prefill_ext.layout.recurrence_plan import Recurrence
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.policy import policy_of
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from sglang_prefill_ext.startup.answer_check import AnswerCheck, Tolerance
from sglang_prefill_ext.wire.packed import PackedResult, to_bytes
from sglang_prefill_ext.wire.status import Status
from tests.unit.scheduling.jobs import IdleExecutor, request


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


# What is tried before a server declines

RIGHT, WRONG = (
    AnswerCheck(((0, 1),), (apart,), (apart,), Tolerance(0.25, 1.0), 0.1) for apart in (0.1, 2.0)
)


FAILS = ArithmeticError("a kernel does not compile")


class Tries:
    """Sets up nothing: records what is tried, and returns verdicts, or raises them."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *verdicts: AnswerCheck | Exception | None,
        ranks: int = 1,
    ) -> None:
        self.tried: list[tuple[AttentionWay, int]] = []
        self.without_graphs = 0
        left = list(verdicts)

        def tried(*args: Any) -> Any:
            *_, attempt, _bytes = args
            self.tried.append(attempt[:2])
            verdict = left.pop(0)
            if isinstance(verdict, Exception):
                raise verdict
            return self, len(self.tried), verdict

        self.graph_use = GraphUse()
        monkeypatch.setattr(runtime_setup, "_tried", tried)
        self.ranks: Any = SimpleNamespace(count=ranks, largest=lambda numbers: numbers)
        model = SimpleNamespace(pool=None, device=torch.device("cpu"))
        monkeypatch.setattr(runtime_setup, "model_of", lambda _runner, _stream: model)
        monkeypatch.setattr(runtime_setup, "room_in", lambda _pool, _scheduler: "room")
        monkeypatch.setattr(
            runtime_setup, "_graph_tokens", lambda _s, config, _m: config.cuda_graphs or 0
        )
        monkeypatch.setattr(
            runtime_setup, "resolve_attention", lambda _asked, _model: AttentionWay.FUSED
        )

    def forget_graphs(self) -> None:
        self.without_graphs += 1

    def set_up(self, **knobs: Any) -> Any:
        worker = SimpleNamespace(model_runner=None)
        scheduler = SimpleNamespace(enable_overlap=False, tp_worker=worker)
        config = PrefillOnlyConfig(**knobs)
        found = runtime_setup._set_up_executor(scheduler, config, self.ranks, None)
        executor, measured, room, check = found
        assert room == "room"
        return executor, measured, check


def test_wrong_graphs_are_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = Tries(monkeypatch, WRONG, RIGHT)
    assert tries.set_up(cuda_graphs=64) == (tries, 2, RIGHT)
    assert tries.tried == [(AttentionWay.FUSED, 64), (AttentionWay.FUSED, 0)]
    assert tries.without_graphs == 1
    assert "replaying forwards as graphs is left out" in caplog.text
    assert "is OFF" not in caplog.text


def test_what_fails_is_left_out_like_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = Tries(monkeypatch, FAILS, FAILS, RIGHT)
    assert tries.set_up(cuda_graphs=64) == (tries, 3, RIGHT)
    ways = [(AttentionWay.FUSED, 64), (AttentionWay.FUSED, 0), (AttentionWay.TORCH, 0)]
    assert tries.tried == ways
    assert "forwards fail with --prefill-only-attention fused with graphs" in caplog.text
    assert "a kernel does not compile" in caplog.text


def test_a_failure_of_the_last_way_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArithmeticError):
        Tries(monkeypatch, FAILS, FAILS).set_up()


def test_a_failure_on_one_of_several_ranks_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArithmeticError):
        Tries(monkeypatch, FAILS, RIGHT, ranks=2).set_up()


def test_wrong_kernels_are_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = Tries(monkeypatch, WRONG, RIGHT)
    assert tries.set_up(attention="fused") == (tries, 2, RIGHT)
    assert tries.tried == [(AttentionWay.FUSED, 0), (AttentionWay.TORCH, 0)]
    assert "--prefill-only-attention fused is left out" in caplog.text


@pytest.mark.parametrize(
    ("decode", "prefill", "recurrence", "captured"),
    [
        ("full", "breakable", None, True),
        ("full", "disabled", None, True),
        ("disabled", "breakable", None, True),
        ("disabled", "disabled", None, False),
        ("full", "breakable", Recurrence(4), True),
        ("full", "breakable", Recurrence(4, grid=256), False),
    ],
)
def test_graphs_are_captured_where_sglang_captures_any(
    monkeypatch: pytest.MonkeyPatch,
    decode: str,
    prefill: str,
    recurrence: Recurrence | None,
    captured: bool,
) -> None:
    phases = CudaGraphConfig(PhaseConfig(decode), PhaseConfig(prefill))
    graph = SimpleNamespace(cuda_graph_config=phases)
    monkeypatch.setattr(cuda_graph_config, "get_exec", lambda: SimpleNamespace(graph=graph))
    model: Any = SimpleNamespace(device=torch.device("cuda"), recurrence=recurrence)
    ranks: Any = SimpleNamespace(count=1)
    tokens = runtime_setup._graph_tokens(ranks, PrefillOnlyConfig(), model)
    assert (tokens > 0) == captured
    asked = runtime_setup._graph_tokens(ranks, PrefillOnlyConfig(cuda_graphs=512), model)
    assert asked == 512
