"""Reads anywhere in a request, divided and beside others, are compared with single prompts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.logits import values_by_chunk
from sglang_prefill_ext.forward.memory import peak_bytes
from sglang_prefill_ext.forward.readers.labels import best_tokens
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import plan_forward
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels, Vectors
from sglang_prefill_ext.wire.sampling import Sampling
from tests.unit.forward.tiny_model import HIDDEN, TinyModel, causal
from tests.unit.scheduling.caches import MemoryCache
from tests.unit.scheduling.jobs import job_of_rows, run_alone
from tests.unit.wire.strategies import (
    VOCAB,
    Params,
    PlainRequest,
    plain_requests,
    reads_of,
    sampling_params,
)

MOST_PROBABLE = best_tokens(1)


@dataclass(frozen=True)
class ReadRequest:
    """A request, and what it reads: labels of its own for every read.

    Attributes:
        prefix_reads: last tokens of the prefix that are read.
        row_reads: last tokens of each row that are read.
        labels: of every read.
        draws: how a token is drawn behind each row; empty where none is.
    """

    plain: PlainRequest
    prefix_reads: int
    row_reads: list[int]
    labels: list[list[int]]
    num_best: int
    draws: list[Params]

    def pack(self) -> PackedRows:
        return replace(
            self.plain.pack(),
            prefix_reads=self.prefix_reads,
            read_lens=int_array(self.row_reads),
            read=Labels(
                int_array([label for labels in self.labels for label in labels]),
                int_array(list(map(len, self.labels))),
                num_best=self.num_best,
                sampling=Sampling.joined(Sampling.one(**draw) for draw in self.draws),
            ),
        )

    def expected(self) -> list[float]:
        """The expected values, from the logits of every prompt alone."""
        prefix, first, table = len(self.plain.prefix), self.plain.prompts[0], []
        table += _log_probs(first)[prefix - self.prefix_reads : prefix]
        drawn: dict[int, int] = {}
        for number, (prompt, reads) in enumerate(
            zip(self.plain.prompts, self.row_reads, strict=True)
        ):
            table += _log_probs(prompt)[len(prompt) - reads :]
            if self.draws:
                table[-1] = _biased(table[-1], self.draws[number])
                drawn[len(table) - 1] = (self.draws[number]["seed"] + len(prompt) - 1) % VOCAB
        values: list[float] = []
        for number, (log_probs, labels) in enumerate(zip(table, self.labels, strict=True)):
            values += log_probs[labels].tolist()
            if self.num_best:
                best = drawn.get(number, int(log_probs.argmax()))
                top, ids = log_probs.topk(self.num_best - 1)
                values += [float(log_probs[best]), float(best), *top.tolist(), *ids.tolist()]
        return values


def _biased(log_probs: Tensor, draw: Params) -> Tensor:
    logits = log_probs.clone()
    for token, value in draw["biases"].items():
        logits[token] += value
    return torch.log_softmax(logits / draw["temperature"], dim=-1)


def _states(prompt: list[int]) -> Tensor:
    tokens, places = torch.tensor(prompt), torch.arange(len(prompt))
    run = TinyModel().prepare(tokens, places, places, [len(prompt)], causal, shortened=False)
    return run()


def _log_probs(prompt: list[int]) -> list[Tensor]:
    return list(torch.log_softmax(TinyModel().logits(_states(prompt)), dim=-1))


@st.composite
def read_requests(draw: st.DrawFn) -> ReadRequest:
    plain = draw(plain_requests(max_rows=4))
    prefix_reads = draw(st.integers(0, len(plain.prefix)))
    row_reads = [draw(st.integers(1, len(suffix))) for suffix in plain.suffixes]
    num_best = draw(st.integers(0, 3))
    one = st.lists(st.integers(0, VOCAB - 1), max_size=2)
    labels = [draw(one) for _ in range(prefix_reads + sum(row_reads))]
    if not num_best and not any(labels):
        labels[-1] = [1]
    drawn = num_best > 0 and draw(st.booleans())
    draws = [draw(sampling_params()) for _ in row_reads if drawn]
    return ReadRequest(plain, prefix_reads, row_reads, labels, num_best, draws)


def _run(executor: PackedExecutor, rows: PackedRows, budget: int) -> list[float]:
    return run_alone(executor, job_of_rows(rows, ForwardBudget(budget)), MemoryCache())


@settings(deadline=None)
@given(read_requests(), st.integers(5, 40), st.integers(1, 4))
def test_values_are_those_of_every_prompt_on_its_own(
    request: ReadRequest, budget: int, readout_reads: int
) -> None:
    model, rows = TinyModel(), request.pack()
    executor = PackedExecutor(model, readout_bytes=readout_reads * VOCAB * 4)
    values = _run(executor, rows, budget)
    assert len(values) == rows.num_values
    assert values == pytest.approx(request.expected(), abs=3e-5)
    assert max(model.logit_rows) <= readout_reads
    asked = len(request.labels) if request.num_best else sum(map(bool, request.labels))
    assert sum(model.logit_rows) == asked


@settings(deadline=None)
@given(read_requests(), st.integers(9, 60), st.data())
def test_rows_in_groups_of_their_own_are_read_as_before(
    request: ReadRequest, budget: int, data: st.DataObject
) -> None:
    labels = request.labels[request.prefix_reads :]
    assume(request.num_best or any(labels))
    request = replace(request, prefix_reads=0, labels=labels)
    prefix = len(request.plain.prefix)
    seen = [
        data.draw(st.sampled_from([0, *range(prefix + 1, len(prompt) - reads + 1)]))
        for prompt, reads in zip(request.plain.prompts, request.row_reads, strict=True)
    ]
    cache, executor = MemoryCache(), PackedExecutor(TinyModel(), readout_bytes=VOCAB * 4)
    for _ in range(3):
        job = job_of_rows(request.pack(), ForwardBudget(budget), rows_seen=np.array(seen))
        values = run_alone(executor, job, cache, most_held=cache.capacity)
        assert values == pytest.approx(request.expected(), abs=3e-5)


@settings(deadline=None)
@given(st.lists(read_requests(), min_size=1, max_size=3), plain_requests())
def test_requests_that_read_differently_share_a_forward(
    requests: list[ReadRequest], plain: PlainRequest
) -> None:
    same = replace(plain, prefix=requests[0].plain.prefix)
    packed = [request.pack() for request in requests] + [same.pack()]
    pieces = [split_request(rows, ForwardBudget(1_000))[0] for rows in packed]
    plan = plan_forward(pieces)
    executor = PackedExecutor(TinyModel(), readout_bytes=VOCAB * 4)
    values = executor.launch(plan).wait()
    for request, share in zip(requests, plan.shares, strict=False):
        assert values[share.values].tolist() == pytest.approx(
            request.expected(), rel=1e-6, abs=1e-5
        )
    alone = _run(executor, same.pack(), 1_000)
    assert values[plan.shares[-1].values].tolist() == pytest.approx(alone, abs=1e-5)


@given(read_requests(), st.integers(5, 40), st.integers(0, 60))
def test_pieces_keep_to_the_memory_of_their_reads(
    request: ReadRequest, max_tokens: int, more_bytes: int
) -> None:
    longest = max(map(len, request.plain.suffixes))
    budget = ForwardBudget(max_tokens, longest * (10 + 7) + more_bytes, 10, 7)
    pieces = split_request(request.pack(), budget)
    assert sum(len(piece.reads) for piece in pieces) == len(request.labels)
    assert sum(piece.num_tokens for piece in pieces) == request.plain.num_tokens
    assert all(budget.fits(piece.num_tokens, len(piece.reads)) for piece in pieces)


def test_equally_probable_tokens_are_told_apart_by_their_ids() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0]])
    values = values_by_chunk(logits, reads_of([[]]), lambda states: states, 1, MOST_PROBABLE)
    assert values.tolist() == pytest.approx([float(torch.log_softmax(logits, -1)[0, 1]), 1.0])


def test_the_token_is_that_of_the_highest_logit_where_log_probs_are_equal() -> None:
    logits = torch.tensor([[1e-9, 2e-9]])
    log_probs = torch.log_softmax(logits, -1)[0].tolist()
    assert log_probs[0] == log_probs[1]
    values = values_by_chunk(logits, reads_of([[]]), lambda states: states, 1, MOST_PROBABLE)
    assert values.tolist() == [log_probs[1], 1.0]


def test_memory_does_not_grow_with_reads_times_vocabulary() -> None:
    vocabulary, chunk = 20_000, 8
    head = torch.randn(4, vocabulary)

    def peak(reads: int) -> int:
        hidden = torch.randn(reads, 4)
        asked, pick = reads_of([[5]] * reads), best_tokens(3)

        def read() -> Tensor:
            return values_by_chunk(hidden, asked, lambda some: some @ head, chunk, pick)

        return peak_bytes(torch.device("cpu"), read)

    one_chunk = chunk * vocabulary * 4
    assert one_chunk < peak(100) < 4 * one_chunk
    assert peak(1_000) - peak(100) < one_chunk / 4


@settings(deadline=None)
@given(plain_requests(max_rows=4), st.integers(5, 40), st.data())
def test_vectors_are_read_at_any_token(
    plain: PlainRequest, budget: int, data: st.DataObject
) -> None:
    row_reads = [data.draw(st.integers(1, len(suffix))) for suffix in plain.suffixes]
    wanted = [data.draw(st.integers(0, 1)) for _ in range(sum(row_reads))]
    wanted[-1] = 1
    model = TinyModel()
    model.vector_width = HIDDEN
    rows = replace(
        plain.pack(),
        read=Vectors(HIDDEN, int_array(wanted)),
        read_lens=int_array(row_reads),
    )
    values = _run(PackedExecutor(model, readout_bytes=VOCAB * 4), rows, budget)
    states = [
        state
        for prompt, reads in zip(plain.prompts, row_reads, strict=True)
        for state in _states(prompt)[len(prompt) - reads :]
    ]
    expected = [state for state, each in zip(states, wanted, strict=True) if each]
    assert len(values) == rows.num_values == len(expected) * HIDDEN
    assert values == pytest.approx(torch.cat(expected).tolist(), abs=3e-5)
