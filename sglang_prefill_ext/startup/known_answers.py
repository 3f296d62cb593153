"""A fixed set of prompts that the packed and the stock path must answer alike.

They are asked once, at start. If the paths differ, the cause is this model's code, its kernels or
this device, and a weight update changes none of these. The prefix cache is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sglang_prefill_ext.config import Order
from sglang_prefill_ext.errors import PackedForwardError
from sglang_prefill_ext.scheduling.budget import UNLIMITED, ForwardBudget, QueueLoad
from sglang_prefill_ext.scheduling.failures import AfterFailure
from sglang_prefill_ext.scheduling.planner import Executor
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy
from sglang_prefill_ext.scheduling.prefix_cache import PrefixCache
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from sglang_prefill_ext.wire.arrays import Float32Array, Int32Array, int_array
from sglang_prefill_ext.wire.flat import unpacked
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.parts import whole_rows
from sglang_prefill_ext.wire.read import Labels, Vectors
from sglang_prefill_ext.wire.status import Status

MOST_TOKENS = 400
"""Tokens of all requests together; fewer if a forward or a prompt may not be so long."""

LONGEST_WINDOW = 1024
"""Windows of more tokens are not exceeded: prompts of twice their length would take too long."""

LABELS = 16

_SEED = 20

# Tokens of prefix and suffixes of each request if all have `MOST_TOKENS`. The first two share a
# forward. The last one takes two, and so holds the K/V of its prefix in between.
_SHAPES = ((47, (1, 5, 30)), (0, (1, 7, 69)), (211, (2, 27)))


def known_requests(
    *, vocab_size: int, vector_width: int, longest_prompt: int, max_tokens: int, window: int = 0
) -> list[PackedRows]:
    """Return requests with long and short rows (down to one token), with and without a prefix.

    Args:
        vocab_size: token ids are below it.
        vector_width: of the model's vectors; 0 if labels are read.
        longest_prompt: most tokens of a prompt, >= 1.
        max_tokens: most tokens of one forward; all requests together have at most three quarters of
            it, as far as every row can keep one token and `window` asks for no more.
        window: how far a layer sees, in tokens; 0 for no limit. The prefix of the last request goes
            beyond it by as much again, or as far as `longest_prompt` and `max_tokens` allow.
    """
    tokens = max(1, min(MOST_TOKENS, 3 * max_tokens // 4, 3 * longest_prompt // 2))
    labels = np.unique(np.linspace(0, vocab_size - 1, LABELS).astype(np.int32))
    read = Vectors(vector_width) if vector_width else Labels(labels)
    random = np.random.default_rng(_SEED)
    requests = []
    for number, (most_prefix, most_suffixes) in enumerate(_SHAPES, start=1):
        prefix = most_prefix * tokens // MOST_TOKENS
        suffixes = [max(1, most * tokens // MOST_TOKENS) for most in most_suffixes]
        if window and number == len(_SHAPES):
            prefix = max(prefix, min(2 * window, max_tokens, longest_prompt - max(suffixes)))
        ids = random.integers(vocab_size, size=prefix + sum(suffixes), dtype=np.int32)
        requests.append(PackedRows(ids, prefix, int_array(suffixes), read))
    return requests


def prompts_of(rows: PackedRows) -> list[Int32Array]:
    """The rows as separate prompts, int32."""
    prefix, suffixes = unpacked(rows)
    return [np.concatenate([prefix, suffix]) for suffix in suffixes.rows()]


def lengths_of(requests: Sequence[PackedRows]) -> tuple[tuple[int, int], ...]:
    """`AnswerCheck.prompts` of requests."""
    return tuple((rows.prefix_len, own) for rows in requests for own in rows.suffix_lens.tolist())


def packed_answers(
    executor: Executor,
    requests: Sequence[PackedRows],
    budget: ForwardBudget,
    slots: PrefixCache | None = None,
    after_failure: AfterFailure = lambda _error: None,
) -> list[Float32Array]:
    """Run requests as the packed path runs those of users; return ``[rows, values]`` of each.

    The largest request takes more than one forward; the others share one.

    Args:
        slots: gives room for the largest request's prefix between its forwards.
        after_failure: what it raises is raised here.

    Raises:
        PackedForwardError: a forward failed, and others can follow.
    """
    if not executor.causal:
        requests = [whole_rows(rows) for rows in requests]
    longest_row = max(int(rows.suffix_lens.max()) for rows in requests)
    tokens = max(longest_row, sum(len(rows.tokens) for rows in requests) // 2)
    policy = SchedulingPolicy(
        budget=replace(budget, max_tokens=min(tokens, budget.max_tokens)),
        order=Order.FCFS,
        ageing=1,
        launch_tokens=UNLIMITED,  # every request that fits into a forward joins it
        limits=QueueLoad(tokens=UNLIMITED, rows=UNLIMITED, bytes=UNLIMITED),
    )
    results: dict[str, PackedResult] = {}

    def answer(ended: Sequence[Ended]) -> None:
        results.update((job.rid, result) for job, result in ended)

    runtime = PackedRuntime(executor, answer, policy, cache=slots, after_failure=after_failure)
    for number, rows in enumerate(requests):
        runtime.submit(str(number), rows, None)
    while runtime.busy:
        runtime.step()
    for result in results.values():
        if result.status is not Status.OK:
            raise PackedForwardError(f"Packed forward: {result.message}")
    return [
        results[str(number)].row_values().reshape(rows.num_rows, -1)
        for number, rows in enumerate(requests)
    ]
