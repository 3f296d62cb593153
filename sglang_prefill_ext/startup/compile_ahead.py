"""Forwards of every kind, run before the first request; pure.

A Triton kernel is compiled when it is first launched in some form, which takes seconds: with a
held prefix or without one, in one launch, merged or divided, with few rows or many. Each of them
is tried here, in the model's own layers, so that no request waits for a compiler.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.layout.kernel_plan import DIVIDED_PREFIX_TOKENS
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.prefix_cache import PrefixCache
from sglang_prefill_ext.scheduling.prefixed_forward import Executor, PrefixedForward
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels, Vectors


class Shape(NamedTuple):
    """A request with rows of one token that takes two forwards: its prefix is fresh, then held. One
    that fits a forward takes one.

    Attributes:
        prefix: tokens of the prefix; fewer where prompts cannot be so long.
        tokens: of the request; fewer where its forwards would not be full.
        forward: most tokens of a forward.
        full: its forwards have as many tokens as they may.
    """

    prefix: int
    tokens: int
    forward: int
    full: bool = True


SMALL = Shape(prefix=64, tokens=256, forward=128)
"""Each kind of read-out has its own launch: 64 rows are few for it, and 128 are many."""

LONE = Shape(prefix=0, tokens=1, forward=1)
"""All layers see one token: what models have compiled by torch, such as Cohere's norms and the
embeddings that tensor-parallel ranks share, has a form of its own for that."""

LARGE = Shape(prefix=2048, tokens=16_384, forward=8192)
"""AUTO merges both forwards, and also those of half the size where a forward may have no more."""

LONG = Shape(DIVIDED_PREFIX_TOKENS, DIVIDED_PREFIX_TOKENS + 16, DIVIDED_PREFIX_TOKENS, full=False)
"""Its last forward reads few rows behind a prefix so long that its keys are divided."""


class CompilingExecutor(Executor, Protocol):
    """What is asked of an executor besides; see `Model`."""

    @property
    def attention(self) -> AttentionWay: ...

    @property
    def longest_prompt(self) -> int | None: ...

    @property
    def vector_width(self) -> int: ...


def compile_ahead(executor: CompilingExecutor, budget: ForwardBudget, slots: PrefixCache) -> None:
    """Run forwards of every kind that requests within the budget can ask for.

    Torch compiles nothing, and prompts that share no prefix have one kind of forward, which has run
    when a budget was measured.

    Args:
        slots: room for the prefix of a request between its forwards; nobody else has any.

    Raises:
        RuntimeError: what `PackedExecutor.launch` raises.
    """
    if executor.attention is AttentionWay.TORCH or not executor.causal:
        return
    shapes = [LONE, SMALL, LARGE] if executor.attention is AttentionWay.AUTO else [LONE, SMALL]
    if executor.longest_prompt is None or executor.longest_prompt > LONG.prefix:
        shapes.append(LONG)
    for shape in shapes:
        limit = replace(budget, max_tokens=min(shape.forward, budget.max_tokens))
        rows = _request(shape, limit.max_tokens, executor, slots.capacity)
        job = Job("compile-ahead", rows, pieces=split_request(rows, limit), large=True)
        try:
            while not job.launched:
                prefixed = PrefixedForward([job], slots)
                try:
                    executor.launch(prefixed.plan, prefixed.held, prefixed.stores).wait()
                finally:
                    prefixed.rollback()  # nothing is worth keeping
                job.next_piece += 1
        finally:
            if job.held is not None:
                job.held.rollback()


def _request(shape: Shape, forward: int, executor: CompilingExecutor, room: int) -> PackedRows:
    tokens = shape.tokens - (shape.tokens % forward if shape.full else 0)
    prefix = min(shape.prefix, room)
    if executor.longest_prompt is not None:
        prefix = min(prefix, executor.longest_prompt - 1)
    width = executor.vector_width
    read = Vectors(width) if width else Labels(int_array([0]))
    ids, suffixes = np.zeros(tokens, np.int32), int_array([1] * (tokens - prefix))
    return PackedRows(ids, prefix, suffixes, read)
