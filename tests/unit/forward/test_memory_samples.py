"""The measured memory is compared with forwards of shapes that were not measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from sglang_prefill_ext.forward import memory_samples
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.memory import MemoryModel, peak_bytes
from sglang_prefill_ext.forward.memory_samples import measured_memory
from sglang_prefill_ext.forward.pace import CPU_TOKENS, measured_pace
from sglang_prefill_ext.layout.tokens import ForwardLayout
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import ForwardPlan, plan_forward
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.sampling import Sampling
from tests.unit.forward.test_memory import expected_bytes
from tests.unit.forward.tiny_model import TinyModel
from tests.unit.scheduling.jobs import IdleExecutor

CPU = torch.device("cpu")
MAX_TOKENS = 8192
READOUT_BYTES = 1 << 16


def plan_of(prefix: int, lens: Sequence[int]) -> ForwardPlan:
    tokens = np.ones(prefix + sum(lens), np.int32)
    rows = PackedRows(tokens, prefix, int_array(lens), Labels(int_array([1, 2])))
    (piece,) = split_request(rows, ForwardBudget(len(tokens)))
    return plan_forward([piece])


@pytest.fixture(scope="module")
def executor() -> PackedExecutor:
    return PackedExecutor(TinyModel(), readout_bytes=READOUT_BYTES)


@pytest.fixture(scope="module")
def memory(executor: PackedExecutor) -> MemoryModel:
    return measured_memory(executor, MAX_TOKENS, CPU_TOKENS)


@pytest.mark.parametrize(
    ("prefix", "lens"),
    [
        (0, [3000]),
        (500, [10] * 100),
        (60, [2] * 2000),
        (0, [5] * 700),
        (3000, [64] * 30),
        (100, [1000, 3, 700, 1, 1]),
    ],
)
def test_forwards_of_other_shapes_stay_below_what_is_expected(
    executor: PackedExecutor, memory: MemoryModel, prefix: int, lens: list[int]
) -> None:
    plan = plan_of(prefix, lens)
    peak = peak_bytes(CPU, lambda: executor.launch(plan).wait())
    expected = expected_bytes(memory, plan.num_tokens, plan.num_rows)
    assert peak <= expected
    assert expected <= 2 * expected_bytes(memory, MAX_TOKENS, MAX_TOKENS // 64)


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("rows", [1, 40, 500])
def test_the_most_probable_token_and_a_drawn_one_are_counted(
    memory: MemoryModel, executor: PackedExecutor, rows: int, drawn: bool
) -> None:
    lens = np.full(rows, 2, np.int32)
    one = Sampling.one(temperature=1.0, top_p=0.9, min_p=0.0, top_k=5, seed=1, biases={})
    sampling = Sampling(np.repeat(one.draws, rows), one.biases) if drawn else None
    packed = PackedRows(np.ones(2 * rows, np.int32), 0, lens, Labels(num_best=1, sampling=sampling))
    (piece,) = split_request(packed, ForwardBudget(2 * rows))
    plan = plan_forward([piece])
    peak = peak_bytes(CPU, lambda: executor.launch(plan).wait())
    assert peak <= expected_bytes(memory, plan.num_tokens, plan.num_rows)


def test_whole_chunks_are_read_when_memory_is_measured() -> None:
    plans: list[ForwardPlan] = []

    class Noting(PackedExecutor):
        def launch(self, plan: ForwardPlan) -> Any:
            plans.append(plan)
            return super().launch(plan)

    executor = Noting(TinyModel(), readout_bytes=READOUT_BYTES)
    large = measured_memory(executor, 1024, 1024)
    best, drawn = plans[-2:]
    assert best.num_rows == drawn.num_rows == 2 * executor.chunk_reads
    assert [kind.num_best for plan in (best, drawn) for kind, _ in plan.reads.by_kind()] == [1, 1]
    assert best.reads.sampling is None
    assert drawn.reads.sampling is not None
    assert len(drawn.reads.sampling) == drawn.num_rows
    logits = best.num_rows * TinyModel.vocab_size * 4 // 2
    assert large.fixed_bytes > logits


@pytest.mark.parametrize(
    ("chunk_reads", "counted"), [(500, 1000), (1024, 2048), (3000, 6000), (10_000, 8192)]
)
def test_chunks_of_more_rows_than_are_run_are_counted_whole(
    monkeypatch: pytest.MonkeyPatch, chunk_reads: int, counted: int
) -> None:
    monkeypatch.setattr(
        memory_samples, "peak_bytes", lambda _device, work: 1000 * work.args[1].num_rows
    )
    executor = PackedExecutor(TinyModel(), readout_bytes=READOUT_BYTES)
    executor.chunk_reads = chunk_reads
    monkeypatch.setattr(executor, "launch", IdleExecutor().launch)
    memory = measured_memory(executor, MAX_TOKENS, CPU_TOKENS)
    assert memory == MemoryModel(1250 * counted, 0, 1250)


@pytest.mark.parametrize("drawing_takes_more", [False, True])
def test_the_larger_one_of_two_read_outs_is_counted(
    monkeypatch: pytest.MonkeyPatch, drawing_takes_more: bool
) -> None:
    def peak(_device: object, work: Any) -> int:
        draws = work.args[1].reads.sampling is not None
        best = any(kind.num_best for kind, _ in work.args[1].reads.by_kind())
        return 2000 if best and draws == drawing_takes_more else 1000

    monkeypatch.setattr(memory_samples, "peak_bytes", peak)
    executor = PackedExecutor(TinyModel(), readout_bytes=READOUT_BYTES)
    monkeypatch.setattr(executor, "launch", IdleExecutor().launch)
    assert measured_memory(executor, 2048, 2048) == MemoryModel(2500, 0, 0)


def measured_layouts(model: TinyModel, tokens: int) -> list[ForwardLayout]:
    """Layouts of the forwards that are run to measure forwards up to this number of tokens."""
    layouts = []

    class Noting(PackedExecutor):
        def launch(self, plan: ForwardPlan) -> Any:
            layouts.append(plan.layout)
            return super().launch(plan)

    executor = Noting(model, readout_bytes=READOUT_BYTES)
    sampled = min(tokens, CPU_TOKENS)
    measured_memory(executor, tokens, sampled)
    measured_pace(executor, sampled, tokens)
    assert max(layout.num_tokens for layout in layouts) == sampled
    return layouts


def test_an_encoder_is_measured_with_prompts_that_it_has_positions_for() -> None:
    model = TinyModel()
    model.causal, model.longest_prompt = False, 100
    groups = [group for layout in measured_layouts(model, 1000) for group in layout.groups]
    assert max(int(group.suffix_lens.max()) for group in groups) == 100
    assert not any(group.prefix_len for group in groups)


@pytest.mark.parametrize("longest_prompt", [64, 100, 999])
def test_a_decoder_is_measured_with_prompts_that_it_has_positions_for(longest_prompt: int) -> None:
    model = TinyModel()
    model.longest_prompt = longest_prompt
    layouts = measured_layouts(model, 4000)
    assert max(int(layout.positions().max()) for layout in layouts) < longest_prompt
    assert any(group.prefix_len for layout in layouts for group in layout.groups)
