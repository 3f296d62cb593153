"""What a start measures, and the budget that follows from it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.forward import calibration, pace
from sglang_prefill_ext.forward.calibration import Calibration, calibrate
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.memory import MemoryModel
from sglang_prefill_ext.forward.pace import CHUNK_TOKENS, Pace, measured_pace, sampled_tokens
from sglang_prefill_ext.forward.upload import ForwardCompletion
from sglang_prefill_ext.layout.recurrence_plan import Recurrence
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.graph_room import NO_GRAPHS, GraphCost
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from tests.unit.forward.test_memory import expected_bytes
from tests.unit.forward.tiny_model import TinyModel
from tests.unit.scheduling.jobs import IdleExecutor

MAX_TOKENS = 8192
READOUT_BYTES = 1 << 16


def alone(numbers: list[int]) -> list[int]:
    return numbers


@pytest.fixture(scope="module")
def executor() -> PackedExecutor:
    return PackedExecutor(TinyModel(), readout_bytes=READOUT_BYTES)


@pytest.fixture
def measured_before(monkeypatch: pytest.MonkeyPatch) -> MemoryModel:
    """Stands for an earlier measurement."""
    memory = MemoryModel(100 << 20, 20_000, 100)
    monkeypatch.setattr(calibration, "measured_memory", lambda *_: memory)
    return memory


def test_a_sampler_that_fails_keeps_no_server_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class WithoutSampler(TinyModel):
        def draw(self, *args: Any) -> Any:
            raise NotImplementedError("no sampler here")

    executor = PackedExecutor(WithoutSampler(), readout_bytes=READOUT_BYTES)
    assert calibrate(executor, 100, alone).budget.max_tokens == 100
    assert "could not be measured" in caplog.text


def test_some_free_memory_is_left_alone(
    executor: PackedExecutor, measured_before: MemoryModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = measured_before
    free = int(expected_bytes(memory, MAX_TOKENS // 2, 1) / 0.8)
    monkeypatch.setattr(calibration, "free_bytes", lambda device: free)
    budget = calibrate(executor, MAX_TOKENS, alone).budget
    assert 0 < memory.fixed_bytes + budget.max_bytes <= 0.8 * free
    assert 0.4 * MAX_TOKENS < budget.longest_row < 0.6 * MAX_TOKENS


def test_a_share_of_the_free_memory_is_all_that_is_taken(
    executor: PackedExecutor, measured_before: MemoryModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = measured_before
    share = int(expected_bytes(memory, MAX_TOKENS // 2, 1) / 0.8)
    monkeypatch.setattr(calibration, "free_bytes", lambda device: 100 * share)
    budget = calibrate(executor, MAX_TOKENS, alone, share).budget
    assert 0 < memory.fixed_bytes + budget.max_bytes <= 0.8 * share
    monkeypatch.setattr(calibration, "free_bytes", lambda device: share)
    assert calibrate(executor, MAX_TOKENS, alone, 100 * share).budget == budget


def test_ranks_plan_with_the_largest_needs_and_the_least_memory(executor: PackedExecutor) -> None:
    asked: list[list[int]] = []

    def agree(numbers: list[int]) -> list[int]:
        asked.append(numbers)
        if len(numbers) == 1:
            return numbers
        return [5000, 700, -(1 << 30), -90, 77, 99]

    measured = calibrate(executor, 100, agree)
    assert measured.budget == ForwardBudget(90, 1 << 30, 5000, 700)
    assert measured.launch_tokens == 77
    assert measured.graphs == GraphCost(0, 99)
    (short_us,), (exhausted,), (_, _, too_much, too_late, launch_tokens, eager_tokens) = asked
    assert short_us > exhausted == 0
    assert too_much < 0 == eager_tokens < launch_tokens
    assert too_late == -100


def test_a_device_without_room_is_refused(
    executor: PackedExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "free_bytes", lambda device: 10)
    with pytest.raises(ConfigError, match="cannot hold one row"):
        calibrate(executor, 100, agree=alone)


def test_a_model_that_cannot_run_is_refused_with_the_remedy() -> None:
    class Exhausted(PackedExecutor):
        def launch(self, plan: ForwardPlan) -> ForwardCompletion:
            raise torch.OutOfMemoryError("no memory for 2 GiB")

    with pytest.raises(ConfigError, match=r"no memory for 2 GiB.*--mem-fraction-static"):
        calibrate(Exhausted(TinyModel(), readout_bytes=1), 100, alone)


@pytest.mark.parametrize(
    ("s_per_token", "max_tokens", "sampled"),
    [
        (1e-4, 16_384, 2048),
        (1e-4, 100, 100),
        (1.9e-3, 16_384, 1024),
        (1.9e-3, 900, 900),
        (1e-2, 16_384, 128),
        (1.0, 16_384, 128),
    ],
)
def test_a_cpu_is_measured_with_few_tokens_and_fewer_if_it_is_slow(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    s_per_token: float,
    max_tokens: int,
    sampled: int,
) -> None:
    monkeypatch.setattr(pace, "_fastest_s", lambda _executor, plan: s_per_token * plan.num_tokens)
    executor = NotedGraphs()
    assert sampled_tokens(executor, max_tokens, alone) == sampled
    fits = max(128, round(5 / s_per_token))
    assert calibrate(executor, max_tokens, alone).budget.max_tokens == min(max_tokens, fits)
    said = f"A packed forward of more than {fits} tokens would take over 5 s here"
    assert (said in caplog.text) == (fits < max_tokens)
    tokens = [step for step in executor.steps if isinstance(step, int)]
    assert max(tokens) == max(sampled, 128)


def test_ranks_are_measured_with_as_many_tokens_as_the_slowest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "_fastest_s", lambda _executor, plan: 1e-4 * plan.num_tokens)
    assert sampled_tokens(NotedGraphs(), 16_384, lambda numbers: [20 * numbers[0]]) == 512


def test_a_gpu_is_measured_with_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = NotedGraphs()
    monkeypatch.setattr(executor.model, "device", torch.device("cuda"))
    assert sampled_tokens(executor, 16_384, alone) == 16_384
    assert not executor.steps


@pytest.fixture
def sampled_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest forward is measured, as on a GPU."""
    monkeypatch.setattr(calibration, "sampled_tokens", lambda _executor, tokens, _agree: tokens)


class Limited(PackedExecutor):
    """Has no memory for forwards of more than `most` tokens, and computes nothing for others."""

    def __init__(self, most: int) -> None:
        super().__init__(TinyModel(), readout_bytes=READOUT_BYTES)
        self.most = most

    def launch(self, plan: ForwardPlan) -> Any:
        if plan.num_tokens > self.most:
            raise torch.OutOfMemoryError("no memory for 2 GiB")
        return IdleExecutor().launch(plan)


@pytest.mark.usefixtures("sampled_whole")
@pytest.mark.parametrize(
    ("asked", "most", "found"), [(16_384, 9_000, 8_192), (5_000, 4_500, 4_096)]
)
def test_a_forward_that_exhausts_the_memory_is_tried_with_fewer_tokens(
    asked: int, most: int, found: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert calibrate(Limited(most), asked, alone).budget.max_tokens == found
    assert f"A packed forward of {asked} tokens exhausts the memory (no memory" in caplog.text


@pytest.mark.usefixtures("sampled_whole")
def test_a_rank_follows_another_one_whose_memory_is_exhausted() -> None:
    answers = iter([[1], [0]])

    def agree(numbers: list[int]) -> list[int]:
        return next(answers) if len(numbers) == 1 else numbers

    assert calibrate(Limited(16_384), 10_000, agree).budget.max_tokens == 5_000


@pytest.mark.usefixtures("sampled_whole")
def test_memory_for_no_chunk_is_refused() -> None:
    with pytest.raises(ConfigError, match="no memory for 2 GiB"):
        calibrate(Limited(CHUNK_TOKENS - 1), 16_384, alone)


class NotedGraphs(PackedExecutor):
    """Captures nothing but claims `captured`; notes when, and the tokens of forwards."""

    def __init__(self, captured: tuple[int, ...] = ()) -> None:
        super().__init__(TinyModel(), readout_bytes=READOUT_BYTES)
        self.captured = captured
        self.steps: list[object] = []

    def capture_graphs(self, max_tokens: int) -> None:
        self.steps.append(f"capture {max_tokens}")
        self.graph_use.sizes = self.captured

    def launch(self, plan: ForwardPlan) -> ForwardCompletion:
        self.steps.append(plan.num_tokens)
        return super().launch(plan)


BEFORE_RUNS, TIMED_RUNS = 3 + 6, 6
"""Runs that choose how many tokens are measured, and measure memory, and runs that are timed."""


def test_both_launches_are_measured_each_by_forwards_of_its_own_kind() -> None:
    executor = NotedGraphs(captured=(16, 64, 512))
    calibrate(executor, 1000, alone, graph_tokens=512)
    eager, replayed = executor.steps[: BEFORE_RUNS + TIMED_RUNS], executor.steps[-TIMED_RUNS:]
    assert executor.steps == [*eager, "capture 512", *replayed]
    assert eager[BEFORE_RUNS:] == [64] * 3 + [1000] * 3
    assert replayed == [64] * 3 + [512] * 3


@pytest.mark.parametrize("captured", [(), (16, 64)])
def test_graphs_too_small_to_be_timed_and_none_change_no_price(captured: tuple[int, ...]) -> None:
    executor = NotedGraphs(captured)
    measured = calibrate(executor, 1000, alone, graph_tokens=64)
    assert executor.steps[-1] == "capture 64"
    assert measured.graphs == NO_GRAPHS
    without = NotedGraphs()
    assert calibrate(without, 1000, alone).graphs == NO_GRAPHS
    assert len(without.steps) == BEFORE_RUNS + TIMED_RUNS


def test_a_replay_and_an_eager_launch_have_prices_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seconds(executor: PackedExecutor, plan: ForwardPlan) -> float:
        """A replay takes 2 ms plus 10 us per token; an eager forward at least 12 ms."""
        replayed = plan.num_tokens <= max(executor.graph_use.sizes, default=0)
        device_s = 2e-3 + 1e-5 * plan.num_tokens
        return device_s if replayed else max(12e-3, device_s)

    monkeypatch.setattr(pace, "_fastest_s", seconds)
    measured = calibrate(NotedGraphs((2048,)), 4096, alone, graph_tokens=2048)
    assert (measured.launch_tokens, measured.graphs) == (200, GraphCost(2048, 1200))
    assert measured.tokens_per_s == pytest.approx(1e5)
    executor = NotedGraphs((2048,))
    monkeypatch.setattr(NotedGraphs, "most_held_in_graphs", 4096)
    measured = calibrate(executor, 4096, alone, graph_tokens=2048)
    assert measured.graphs == GraphCost(2048, 1200, most_held=4096)
    executor = NotedGraphs((2048,))
    executor.model.recurrence = Recurrence(4)
    monkeypatch.setattr(executor, "_recurrence", lambda _plan: None)  # the model has no such layer
    assert calibrate(executor, 4096, alone, graph_tokens=2048).graphs.carries


@pytest.mark.parametrize(
    ("host_s", "s_per_token", "largest"),
    [
        (12e-3, 1e-5, 1280),  # the device takes 83.9 ms for 8,192 tokens, and 12 ms for 1,171
        (12e-3, 1e-6, 4096),  # the host takes longer in any case
        (0.0, 1e-5, 288),  # a launch costs the device 200 tokens, too
    ],
)
@pytest.mark.usefixtures("measured_before")
def test_graphs_beyond_what_an_eager_launch_hides_are_not_captured(
    monkeypatch: pytest.MonkeyPatch, host_s: float, s_per_token: float, largest: int
) -> None:
    monkeypatch.setattr(
        pace,
        "_fastest_s",
        lambda _executor, plan: max(host_s, 2e-3 + s_per_token * plan.num_tokens),
    )
    for only_useful, captured in ((True, largest), (False, 4096)):
        executor = NotedGraphs()
        calibrate(executor, 8192, alone, graph_tokens=4096, useful_graphs=only_useful)
        assert executor.steps[-1] == f"capture {captured}"


def test_what_graphs_keep_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, captured_when_asked = NotedGraphs(), []

    def free_bytes(_device: torch.device) -> int:
        captured_when_asked.append("capture 48" in executor.steps)
        return 1 << 30

    monkeypatch.setattr(calibration, "free_bytes", free_bytes)
    calibrate(executor, 100, alone, graph_tokens=48)
    assert captured_when_asked == [True]


@pytest.mark.parametrize("max_tokens", [1, 2, 9, 100])
def test_small_forwards_are_measured_too(executor: PackedExecutor, max_tokens: int) -> None:
    measured = calibrate(executor, max_tokens, alone)
    assert measured.budget.max_tokens == max_tokens
    assert 1 <= measured.launch_tokens <= max(max_tokens, 128)


class Timed(IdleExecutor):
    """Takes a fixed time for every launch and every token, on a simulated clock."""

    def __init__(self, clock: pytest.MonkeyPatch, launch_s: float, s_per_token: float) -> None:
        now_s = 0.0

        def pass_time(plan: ForwardPlan) -> None:
            nonlocal now_s
            now_s += launch_s + s_per_token * plan.num_tokens

        super().__init__(pass_time)

        def repeat(run: Any, number: int, repeat: int) -> list[float]:
            begin_s = now_s
            run()
            return [now_s - begin_s]

        clock.setattr(pace, "timeit", SimpleNamespace(repeat=repeat))


@pytest.mark.parametrize(
    ("launch_s", "s_per_token", "expected"), [(0.02, 2e-5, 1000), (0.0, 2e-4, 1)]
)
def test_a_launch_is_told_in_tokens(
    monkeypatch: pytest.MonkeyPatch, launch_s: float, s_per_token: float, expected: int
) -> None:
    executor = Timed(monkeypatch, launch_s, s_per_token)
    assert measured_pace(executor, MAX_TOKENS, MAX_TOKENS).launch_tokens == expected


def test_the_pace_is_that_of_tokens_that_are_routed_to_different_experts() -> None:
    plans: list[ForwardPlan] = []
    measured_pace(IdleExecutor(plans.append), MAX_TOKENS, MAX_TOKENS)
    for plan in plans:
        assert len(np.unique(plan.token_ids)) == min(plan.num_tokens, IdleExecutor.vocab_size)
        assert plan.token_ids.max() < IdleExecutor.vocab_size


def test_where_tokens_cost_nothing_a_launch_is_worth_a_whole_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pace = measured_pace(Timed(monkeypatch, 0.01, 0.0), MAX_TOKENS, MAX_TOKENS)
    assert pace.launch_tokens == MAX_TOKENS
    assert Pace(0.01, 1.0).launch_tokens == 1


def test_what_was_measured_is_said_in_words() -> None:
    measured = Calibration(ForwardBudget(16_384, 3 << 30, 100, 10), 512, 21_000.4)
    assert str(measured) == (
        "a forward has at most 16,384 tokens and 3,072 MiB; 21,000 tokens/s, a launch takes as "
        "long as 512 tokens"
    )
    graphs = Calibration(measured.budget, 512, 1.0, GraphCost(4096, 900))
    assert str(graphs).endswith("; graphs replay up to 4,096 tokens")
