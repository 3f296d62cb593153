"""The prompts of a packed call that was answered, as the server's statistics count them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sglang_prefill_ext.frontend.batch_exchange import ReadOut
from sglang_prefill_ext.wire.packed import Int32Array, PackedRows, int_array
from sglang_prefill_ext.wire.result import PackedResult


@dataclass(frozen=True, slots=True)
class Served:
    """What there was to compute for a call, and what came of it.

    Attributes:
        prompt_tokens: of each prompt, int32 ``[prompts]``.
        cached_tokens: of these, what the prefix cache had, int32 ``[prompts]``.
        new_tokens: tokens that were generated behind each prompt.
        queue_s, compute_s: for how long a prompt waited in the scheduler, and how long its
            forwards took; of several the longest.
    """

    prompt_tokens: Int32Array
    cached_tokens: Int32Array
    new_tokens: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0

    @property
    def num_prompts(self) -> int:
        return len(self.prompt_tokens)


def served_rows(rows: PackedRows, answer: PackedResult) -> Served:
    """Every row is a prompt; what was cached is a part of the prefix, so of every row."""
    lens = rows.suffix_lens + np.int32(rows.prefix_len)
    cached = np.full_like(lens, min(answer.tokens_cached, rows.prefix_len))
    return Served(lens, cached, 0, answer.queue_ms / 1e3, answer.compute_ms / 1e3)


def served_prompts(
    prompt_tokens: Sequence[int], read_outs: Sequence[ReadOut], *, new_tokens: int = 0
) -> Served:
    """Prompts of which each was read for itself; `read_outs` are in their order."""
    cached = int_array([each.cached_tokens for each in read_outs])
    queue_s = max((each.queue_s for each in read_outs), default=0.0)
    compute_s = max((each.compute_s for each in read_outs), default=0.0)
    return Served(int_array(prompt_tokens), cached, new_tokens, queue_s, compute_s)
