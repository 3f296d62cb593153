"""Every kind of forward that requests can ask for is among those that are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.compile_ahead import LONE, LONG, compile_ahead
from sglang_prefill_ext.layout.kernel_plan import DIVIDED_PREFIX_TOKENS, plan_tiles
from sglang_prefill_ext.layout.recurrence_plan import Recurrence, RecurrencePlan
from sglang_prefill_ext.layout.tokens import ForwardLayout
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from tests.unit.scheduling.caches import SLOTS, MemoryCache
from tests.unit.scheduling.jobs import IdleExecutor


class Stage(IdleExecutor):
    """Computes nothing; has the given way of attention, and records the plan of every forward."""

    recurrence: Recurrence | None = None

    def __init__(self, attention: AttentionWay, longest_prompt: int | None = None) -> None:
        self.attention = attention
        self.longest_prompt = longest_prompt  # type: ignore[assignment]
        self.plans: list[ForwardPlan] = []
        super().__init__(self.plans.append)
        self._is_eager = False

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        self._is_eager = True
        yield
        self._is_eager = False

    def launch(self, plan: ForwardPlan) -> Any:
        assert self._is_eager, "a graph is captured from kernels that have been compiled"
        for slots, group in zip(plan.held, plan.layout.groups, strict=True):
            assert (0 if slots is None else len(slots)) == group.held
        return super().launch(plan)


def holds(forward: ForwardLayout) -> bool:
    return any(group.held for group in forward.groups)


def compiled(
    budget: ForwardBudget,
    attention: AttentionWay = AttentionWay.FUSED,
    longest_prompt: int | None = None,
    room: int = SLOTS - 1,
) -> list[ForwardLayout]:
    stage = Stage(attention, longest_prompt)
    slots = MemoryCache(keeps=False, capacity=room)
    compile_ahead(stage, budget, slots)
    slots.check_idle()
    assert all(budget.fits(plan.num_tokens, len(plan.reads)) for plan in stage.plans)
    return [plan.layout for plan in stage.plans]


@settings(max_examples=50)
@given(max_tokens=st.integers(1, 20_000), longest_prompt=st.none() | st.integers(2, 4000))
@example(256, None)
@example(8192, 1250)
def test_forwards_with_and_without_a_held_prefix_are_tried(
    max_tokens: int, longest_prompt: int | None
) -> None:
    forwards = compiled(ForwardBudget(max_tokens), longest_prompt=longest_prompt)
    assert {holds(each) for each in forwards} == {False, True}


def test_few_and_many_rows_are_read_with_and_without_a_held_prefix() -> None:
    lone, small, held_small, *_ = compiled(ForwardBudget(16_384))
    assert (lone.num_tokens, lone.num_rows) == (1, 1)
    assert [small.num_rows, held_small.num_rows] == [64, 128]
    assert small.groups[0].fresh == held_small.groups[0].held > 0
    assert held_small.groups[0].fresh == 0


@pytest.mark.parametrize("max_tokens", [1000, 16_384])
def test_few_rows_on_a_long_prefix_come_last(max_tokens: int) -> None:
    *_, last = compiled(ForwardBudget(max_tokens))
    assert last.groups[0].prefix_len == DIVIDED_PREFIX_TOKENS
    # At least where the last layer reads the ends of rows; it is one kernel for all layers.
    plan = plan_tiles(last, block_tokens=32, queries=last.row_ends, programs=264, key_heads=8)
    assert plan.parts > 1


def test_memory_bounds_the_forwards() -> None:
    budget = ForwardBudget(16_384, max_bytes=10_000, bytes_per_token=10, bytes_per_row=20)
    tokens = sum(each.num_tokens for each in compiled(budget))
    assert tokens == LONE.tokens + 256 + LONG.tokens


def test_prompts_are_no_longer_than_they_can_be() -> None:
    forwards = compiled(ForwardBudget(16_384), longest_prompt=50)
    assert max(int(each.positions().max()) for each in forwards) == 49


def test_a_prefix_is_no_longer_than_there_is_room() -> None:
    assert max(each.groups[0].held for each in compiled(ForwardBudget(16_384), room=40)) == 40


def test_compiling_that_fails_leaves_nothing_behind() -> None:
    slots, stage = MemoryCache(), Stage(AttentionWay.FUSED)

    def fail(plan: ForwardPlan) -> None:
        raise RuntimeError("out of memory")

    stage._on_launch = fail
    with pytest.raises(RuntimeError):
        compile_ahead(stage, ForwardBudget(1000), slots)
    slots.check_idle()


def test_vectors_are_read_where_the_model_makes_them() -> None:
    stage = Stage(AttentionWay.FUSED)
    stage.vector_width = 3
    compile_ahead(stage, ForwardBudget(1000), MemoryCache())
    assert {length for plan in stage.plans for length in plan.reads.lens.tolist()} == {3}


def test_nothing_is_compiled_without_kernels() -> None:
    assert compiled(ForwardBudget(1000), AttentionWay.TORCH) == []


def test_prompts_without_a_prefix_have_one_kind() -> None:
    stage = Stage(AttentionWay.FUSED)
    stage.causal = False
    compile_ahead(stage, ForwardBudget(1000), MemoryCache())
    assert stage.plans == []


def test_forwards_of_recurrent_layers_fit_into_a_small_budget() -> None:
    stage, budget = Stage(AttentionWay.FUSED), ForwardBudget(1000)
    stage.recurrence = Recurrence(4, grid=256)
    compile_ahead(stage, budget, MemoryCache(keeps=False))
    assert all(budget.fits(plan.num_tokens, len(plan.reads)) for plan in stage.plans)


@pytest.mark.parametrize("grid", [0, 256])
def test_every_form_of_the_kernels_of_recurrent_layers_is_tried(grid: int) -> None:
    """SGLang's kernels have a form for states that are kept."""
    stage = Stage(AttentionWay.FUSED)
    stage.recurrence = Recurrence(4, grid=grid)
    compile_ahead(stage, ForwardBudget(8_256), MemoryCache(keeps=False, capacity=20_000))
    planned = [RecurrencePlan(plan.layout, stage.recurrence) for plan in stage.plans]
    parts = [part for plan in planned for each in plan.passes for part in each.parts]
    assert {keep for part in parts for _, keep in part.stages} == {True, False}
    assert any(plan.order() is not None for plan in planned)
