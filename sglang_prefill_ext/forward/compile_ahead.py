"""Run one forward of every kind before the first request, so that all kernels are compiled.

A Triton kernel is compiled at its first launch in each form, which takes seconds. There are forms
with and without a held prefix, for fused, merged and divided attention, and for few and many rows.
Each form is launched here from the model's own layers, so that no request waits for a compiler.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.model import Model
from sglang_prefill_ext.layout.kernel_plan import DIVIDED_PREFIX_TOKENS
from sglang_prefill_ext.layout.recurrence_parts import CHUNK
from sglang_prefill_ext.layout.recurrence_plan import carries_states
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.prefix_cache import PrefixCache
from sglang_prefill_ext.scheduling.prefixed_forward import PrefixedForward
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels, Vectors


class Shape(NamedTuple):
    """A request with rows of one token, of which the first forward computes the prefix.

    If it takes a second forward, the prefix is held there.

    Attributes:
        prefix: tokens of the prefix; fewer if prompts cannot be so long.
        tokens: tokens of the request; if `full`, rounded down to whole forwards.
        forward: most tokens of a forward.
        full: whether each of its forwards has as many tokens as it may.
    """

    prefix: int
    tokens: int
    forward: int
    full: bool = True


SMALL = Shape(prefix=64, tokens=256, forward=128)
"""The read-out is launched in one form for few rows and in another for many: its first forward has
64 rows, its second 128."""

LONE = Shape(prefix=0, tokens=1, forward=1)
"""A forward of one token: parts of models that torch compiles, such as Cohere's norms and the
embeddings that tensor-parallel ranks share, have a form of their own for it."""

LONG = Shape(DIVIDED_PREFIX_TOKENS, DIVIDED_PREFIX_TOKENS + 16, DIVIDED_PREFIX_TOKENS, full=False)
"""Its last forward reads few rows after a prefix so long that its keys are divided."""

CHUNKS = Shape(prefix=2048, tokens=16_384, forward=8192)
MANY_CHUNKS = Shape(prefix=128 * CHUNK + 1, tokens=129 * CHUNK, forward=129 * CHUNK, full=False)
"""SGLang's kernels of Mamba-2 have forms by whether 16 divides the numbers of tokens and chunks."""

NORMALISED = tuple(
    Shape(1, each, each, full=False) for each in (12, 24, 101, 200, 201, 400, 416, 1000)
)
"""SGLang's norms of layers with a state have forms by the tokens, or tokens times heads, for each
multiprocessor, here of a Hopper GPU, and by whether 16 divides their number."""

TOGETHER = Shape(prefix=5, tokens=8, forward=8)
"""Two such requests share a forward, whose tokens recurrent layers compute in another order."""


def compile_ahead(executor: PackedExecutor, budget: ForwardBudget, slots: PrefixCache) -> None:
    """Run forwards of every kind that requests within the budget can ask for.

    Nothing runs with attention by torch, which compiles nothing. Nothing runs for an encoder, whose
    prompts share no prefix: it has one kind of forward, which calibration has run.

    Args:
        slots: gives room for the prefix of a request between its forwards; all of it is free.
    """
    if executor.attention is not AttentionWay.TORCH and executor.causal:
        # What a graph would replay here, requests may ask for in a way that no graph can replay.
        with executor.eagerly():
            _run_all(executor, budget, slots)


def _run_all(executor: PackedExecutor, budget: ForwardBudget, slots: PrefixCache) -> None:
    model = executor.model
    shapes = [LONE, SMALL, LONG]
    if carries_states(model.recurrence):
        shapes += NORMALISED
    if model.recurrence is not None and model.recurrence.grid:
        shapes += [CHUNKS, MANY_CHUNKS]
    for shape in shapes:
        limit = replace(budget, max_tokens=min(shape.forward, budget.max_tokens))
        rows = _request(shape, limit.max_tokens, model, slots.capacity)
        job = Job("compile-ahead", rows, pieces=split_request(rows, limit), large=True)
        try:
            while not job.launched:
                _launch(executor, [job], slots)
                job.next_piece += 1
        finally:
            if job.held is not None:
                job.held.rollback()
    if model.recurrence is not None and budget.fits(2 * TOGETHER.tokens, 2 * TOGETHER.tokens):
        _launch(executor, [_one_of_two(number, model, budget) for number in (0, 1)], slots)


def _launch(executor: PackedExecutor, jobs: list[Job], slots: PrefixCache) -> None:
    prefixed = PrefixedForward(jobs, slots)
    try:
        executor.launch(prefixed.plan).wait()
    finally:
        prefixed.rollback()  # cache nothing


def _one_of_two(number: int, model: Model, budget: ForwardBudget) -> Job:
    """A request with a prefix of its own."""
    rows = _request(TOGETHER, TOGETHER.tokens, model, TOGETHER.prefix)
    rows = replace(rows, tokens=np.full_like(rows.tokens, number))
    return Job(f"compile-ahead-{number}", rows, pieces=split_request(rows, budget))


def _request(shape: Shape, forward: int, model: Model, room: int) -> PackedRows:
    tokens = shape.tokens - (shape.tokens % forward if shape.full else 0)
    prefix = min(shape.prefix, room)
    if model.longest_prompt is not None:
        prefix = min(prefix, model.longest_prompt - 1)
    read = Vectors(model.vector_width) if model.vector_width else Labels(int_array([0]))
    ids, suffixes = np.zeros(tokens, np.int32), int_array([1] * (tokens - prefix))
    return PackedRows(ids, prefix, suffixes, read)
