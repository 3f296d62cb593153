"""Packed forwards of a small model are compared with every row computed alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sglang_prefill_ext.forward import executor as executor_module
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.graphs.plan import GraphUse
from sglang_prefill_ext.forward.logits import ProductHead
from sglang_prefill_ext.forward.model import Adapted, Attend
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.planner import ForwardPlan, plan_forward
from sglang_prefill_ext.scheduling.prefixed_forward import PrefixedForward
from sglang_prefill_ext.scheduling.row_transactions import RowRoom
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.parts import whole_rows
from tests.unit.forward.tiny_model import HIDDEN, LAYERS, TinyModel, causal, full
from tests.unit.scheduling.caches import MemoryCache
from tests.unit.scheduling.jobs import job_of, job_of_rows, run_alone
from tests.unit.wire.strategies import VOCAB, PlainRequest, asking, plain_requests


def _row_by_row(
    request: PlainRequest, attend: Attend = causal, *, first: bool = False
) -> list[float]:
    """Label log-probs, read at the last or at the first token of every row."""
    model, values = TinyModel(), []
    for prompt, labels in zip(request.prompts, request.labels, strict=True):
        run = model.prepare(
            torch.tensor(prompt),
            torch.arange(len(prompt)),
            torch.tensor([0 if first else len(prompt) - 1]),
            [len(prompt)],
            attend,
            adapted=[Adapted(request.adapter, len(prompt), 1)],
            shortened=True,
        )
        values += torch.log_softmax(model.logits(run())[0], dim=-1)[labels].tolist()
    return values


def _plans(rows: PackedRows, budget: int) -> list[ForwardPlan]:
    return [plan_forward([piece]) for piece in split_request(rows, ForwardBudget(budget))]


def _packed(model: TinyModel, request: PlainRequest, budget: int, readout_rows: int) -> list[float]:
    executor = PackedExecutor(model, readout_bytes=readout_rows * VOCAB * 4)
    return run_alone(executor, job_of(request, budget), MemoryCache(keeps=False))


@given(plain_requests())
def test_prompts_of_an_encoder_see_all_of_themselves(request: PlainRequest) -> None:
    model = TinyModel()
    model.causal = False
    executor = PackedExecutor(model, readout_bytes=4 * VOCAB)
    (plan,) = _plans(whole_rows(request.pack()), 10_000)
    values = executor.launch(plan).wait()
    np.testing.assert_allclose(values, _row_by_row(request, full, first=True), rtol=0, atol=1e-5)


@given(plain_requests(), st.integers(5, 40), st.integers(1, 4), st.sampled_from(["", "a"]))
def test_values_equal_those_of_every_row_on_its_own(
    request: PlainRequest, budget: int, readout_rows: int, adapter: str
) -> None:
    model, request = TinyModel(), replace(request, adapter=adapter)
    values = _packed(model, request, budget, readout_rows)
    assert values == pytest.approx(_row_by_row(request), abs=1e-5)
    assert sum(model.logit_rows) == len(request.suffixes)
    assert max(model.logit_rows) <= readout_rows
    named = {part.adapter for parts in model.adapted for part in parts}
    assert named == ({adapter} if adapter else set()), "forwards without adapters have no parts"


@given(
    st.lists(plain_requests(), min_size=2, max_size=4),
    st.lists(st.sampled_from(["", "", "a", "b"]), min_size=4, max_size=4),
    st.integers(5, 40),
    st.data(),
)
def test_requests_in_company_get_the_values_that_they_get_alone(
    requests: list[PlainRequest], adapters: list[str], budget: int, data: st.DataObject
) -> None:
    """Random forwards have the next pieces of several requests."""
    executor, cache = PackedExecutor(TinyModel(), readout_bytes=2 * VOCAB * 4), MemoryCache()
    first = requests[0].prefix
    requests = [
        replace(each, prefix=first if data.draw(st.booleans()) else each.prefix, adapter=adapter)
        for each, adapter in zip(requests, adapters, strict=False)
    ]
    jobs = [job_of(each, budget) for each in requests]
    for job in _launched_in_random_company(executor, jobs, cache, data):
        if job.held is not None:
            job.held.rollback()
    for each, job in zip(requests, jobs, strict=True):
        assert job.answer().tolist() == pytest.approx(_row_by_row(each), abs=1e-5)


def _launched_in_random_company(
    executor: PackedExecutor,
    jobs: list[Job],
    cache: MemoryCache,
    data: st.DataObject,
    room: Sequence[int] = (0,),
) -> Iterator[Job]:
    """Compute random forwards of the next pieces of jobs; yield each job after its last one.

    Args:
        room: groups of rows may hold one of these numbers of tokens in each forward; 0: none may.
    """
    while open_ones := [job for job in jobs if not job.launched]:
        chosen = data.draw(st.lists(st.sampled_from(open_ones), min_size=1, unique=True))
        held = data.draw(st.sampled_from(room))
        prefixed = PrefixedForward(chosen, cache, RowRoom(held) if held else None)
        assert prefixed.plan.num_tokens <= sum(job.piece.num_tokens for job in chosen)
        computed = executor.launch(prefixed.plan).wait()
        prefixed.commit()
        for job, share in zip(chosen, prefixed.shares, strict=True):
            job.values.append(computed[share.values])
            job.next_piece += 1
            if job.launched:
                yield job


def _with_cache(
    executor: PackedExecutor, request: PlainRequest, budget: int, cache: MemoryCache
) -> list[float]:
    rows = request.pack()
    cached = cache.cached_tokens(rows.tokens[: rows.prefix_len])
    return run_alone(executor, job_of_rows(rows, ForwardBudget(budget), cached), cache)


@given(st.lists(plain_requests(), min_size=1, max_size=4), st.integers(5, 40), st.data())
def test_values_are_the_same_on_what_earlier_forwards_have_stored(
    requests: list[PlainRequest], budget: int, data: st.DataObject
) -> None:
    executor, cache = PackedExecutor(TinyModel(), readout_bytes=2 * VOCAB * 4), MemoryCache()
    first = requests[0].prefix
    for each in requests:
        begin = data.draw(st.integers(0, len(first)))
        request = replace(each, prefix=first[:begin] + each.prefix[begin:])
        values = _with_cache(executor, request, budget, cache)
        assert values == pytest.approx(_row_by_row(request), abs=1e-5)


@given(
    st.lists(plain_requests(max_suffix=9), min_size=1, max_size=3), st.integers(9, 60), st.data()
)
def test_values_are_the_same_where_rows_have_groups_of_their_own(
    requests: list[PlainRequest], budget: int, data: st.DataObject
) -> None:
    """Any beginnings of rows may have come before; the cache keeps them, and uses them again."""
    executor, cache = PackedExecutor(TinyModel(), readout_bytes=2 * VOCAB * 4), MemoryCache()
    requests = [replace(each, prefix=requests[0].prefix) for each in requests]
    seen = [
        np.array([data.draw(_beginning_of(each, suffix)) for suffix in each.suffixes])
        for each in requests
    ]
    for _ in range(3):
        jobs = [
            job_of(each, budget, rows_seen=lens) for each, lens in zip(requests, seen, strict=True)
        ]
        room = (0, 30, cache.capacity)
        for job in _launched_in_random_company(executor, jobs, cache, data, room):
            if job.held is not None:
                job.held.commit()
        for each, job in zip(requests, jobs, strict=True):
            assert job.answer().tolist() == pytest.approx(_row_by_row(each), abs=1e-5)
        cache.check_idle()


def _beginning_of(request: PlainRequest, suffix: list[int]) -> st.SearchStrategy[int]:
    """How many first tokens of a row's prompt came before: 0, or more than the prefix."""
    prefix = len(request.prefix)
    return st.sampled_from([0, *range(prefix + 1, prefix + len(suffix))])


@torch.inference_mode()
def test_what_is_stored_is_what_is_attended_to() -> None:
    model, cache = TinyModel(), MemoryCache()
    executor = PackedExecutor(model, readout_bytes=2 * VOCAB * 4)
    _with_cache(executor, LONG, 100, cache)
    slots = cache.committed[tuple(LONG.prefix)]
    for layer in range(LAYERS):
        keys, _ = model.pool.buffers(layer)
        keys[slots] = keys[slots.flip(0)]
    values = _with_cache(executor, LONG, 100, cache)
    assert [transaction.cached for transaction in cache.begun] == [0, 10]
    assert values != pytest.approx(_row_by_row(LONG), abs=1e-2)


class SplitHeadModel(TinyModel):
    """A model whose output head can be restricted to labels."""

    def product_head(self) -> ProductHead:
        return ProductHead(self.head.T)


@pytest.mark.parametrize("model", [TinyModel(), SplitHeadModel()], ids=["whole", "split"])
@given(plain_requests(), st.integers(5, 40))
def test_labels_alone_are_read_without_the_vocabulary(
    model: TinyModel, request: PlainRequest, budget: int
) -> None:
    executor = PackedExecutor(model, readout_bytes=VOCAB * 4)
    model.logit_rows.clear()
    rows = asking(request.pack(), normalised=False)
    values = run_alone(executor, job_of_rows(rows, ForwardBudget(budget)), MemoryCache())
    expected = iter(_row_by_row(request))
    for labels in request.labels:
        row = torch.tensor([next(expected) for _ in labels])
        read = torch.tensor([values.pop(0) for _ in labels])
        assert torch.allclose(read.softmax(0), row.softmax(0), atol=1e-5)
    assert not values
    assert bool(model.logit_rows) is (type(model) is TinyModel)


@given(st.lists(plain_requests(), min_size=2, max_size=4), st.data())
def test_only_rows_that_ask_for_it_pass_over_the_vocabulary(
    requests: list[PlainRequest], data: st.DataObject
) -> None:
    model = SplitHeadModel()
    wanted = [data.draw(st.booleans()) for _ in requests]
    pieces = [
        split_request(asking(each.pack(), normalised=normalised), ForwardBudget(1000))[0]
        for each, normalised in zip(requests, wanted, strict=True)
    ]
    plan = plan_forward(pieces)
    model.logit_rows.clear()
    values = PackedExecutor(model, readout_bytes=1 << 20).launch(plan).wait()
    asked = [each for each, asks in zip(requests, wanted, strict=True) if asks]
    assert sum(model.logit_rows) == sum(len(each.suffixes) for each in asked)
    for request, asks, share in zip(requests, wanted, plan.shares, strict=True):
        read = torch.from_numpy(values[share.values]).split([*map(len, request.labels)])
        expected = torch.tensor(_row_by_row(request)).split([*map(len, request.labels)])
        for row, logprobs in zip(read, expected, strict=True):
            if asks:
                assert torch.allclose(row, logprobs, atol=1e-5)
            assert torch.allclose(row.softmax(0), logprobs.softmax(0), atol=1e-5)


LONG = PlainRequest(
    prefix=list(range(10)),
    suffixes=[[1, 2], [3], [4, 5, 6]],
    labels=[[7, 8]] * 3,
    shared_labels=True,
)


def test_row_lengths_count_the_prefix_to_the_first_row() -> None:
    model = TinyModel()
    _packed(model, LONG, budget=16, readout_rows=4)
    assert model.row_lens == [[12, 1, 3]]
    model.row_lens.clear()
    _packed(model, LONG, budget=4, readout_rows=4)
    assert model.row_lens == [[4], [4], [4], [1, 3]]


def test_little_memory_still_reads_one_row_at_a_time() -> None:
    model = TinyModel()
    executor = PackedExecutor(model, readout_bytes=1)
    (plan,) = _plans(LONG.pack(), 100)
    executor.launch(plan)
    assert model.logit_rows == [1, 1, 1]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_model_says_whether_forwards_run_on(asynchronous: bool) -> None:
    model = TinyModel(asynchronous=asynchronous)
    assert PackedExecutor(model, readout_bytes=1).asynchronous is asynchronous


def test_forwards_are_launched_on_the_models_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TinyModel()
    events: list[str] = []

    class Stream:
        def __enter__(self) -> None:
            events.append("enter")

        def __exit__(self, *_: Any) -> None:
            events.append("exit")

    logits = model.logits

    def noted_logits(hidden: Tensor) -> Tensor:
        events.append("logits")
        return logits(hidden)

    monkeypatch.setattr(model, "stream", Stream)
    monkeypatch.setattr(model, "logits", noted_logits)
    (plan,) = _plans(LONG.pack(), 100)
    PackedExecutor(model, readout_bytes=1 << 20).launch(plan)
    assert events == ["enter", "logits", "exit"]


def test_a_failing_forward_raises_and_the_next_one_works() -> None:
    model = TinyModel()
    executor = PackedExecutor(model, readout_bytes=1 << 20)
    (plan,) = _plans(LONG.pack(), 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "head", torch.empty(HIDDEN + 1, VOCAB))
        with pytest.raises(RuntimeError):
            executor.launch(plan)
    assert executor.launch(plan).wait().tolist() == pytest.approx(_row_by_row(LONG), abs=1e-5)


def test_launching_does_not_wait_for_the_device(unreadable: torch.device) -> None:
    model = TinyModel()
    model.move(unreadable)
    shared = PlainRequest([1, 2, 3], [[4], [5, 6]], [[1, 2], [3]], shared_labels=False)
    alone = PlainRequest([], [[7, 8, 9]], [[2]], shared_labels=True)
    pieces = [split_request(each.pack(), ForwardBudget(1000))[0] for each in (shared, alone)]
    plan = plan_forward(pieces)
    PackedExecutor(model, readout_bytes=1 << 10).launch(plan)
    assert model.row_lens == [[4, 2, 3]]


def test_prompts_of_a_graph_lie_in_their_first_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = TinyModel(), []
    monkeypatch.setattr(model, "heads", (*model.heads, replace(model.heads[0], chunk=12)))
    monkeypatch.setattr(executor_module, "PackedGraphs", lambda *settings: asked.append(settings))
    executor = PackedExecutor(model, readout_bytes=1 << 16, caches_prefixes=True)
    for tokens in (16, 8):
        executor.capture_graphs(tokens)
    assert [(pool, tokens) for _, _, pool, _, tokens in asked] == [(None, 12), (None, 8)]


def test_forgotten_graphs_are_as_if_nobody_had_asked_for_them() -> None:
    executor = PackedExecutor(TinyModel(), readout_bytes=1 << 16)
    executor.capture_graphs(16)
    assert executor.graph_use.obstacle
    executor.forget_graphs()
    assert executor.graph_use == GraphUse()
