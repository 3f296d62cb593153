from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.model_executor import cuda_graph_config
from sglang.srt.model_executor.cuda_graph_config import CudaGraphConfig, PhaseConfig

from sglang_prefill_ext.border.scheduler import runtime_setup
from sglang_prefill_ext.config import AttentionWay, PrefillOnlyConfig
from sglang_prefill_ext.forward.graphs.plan import GraphUse
from sglang_prefill_ext.layout.recurrence_plan import Recurrence
from sglang_prefill_ext.startup.answer_check import AnswerCheck, Tolerance

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
