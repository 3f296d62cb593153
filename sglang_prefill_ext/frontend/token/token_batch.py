"""Packs calls for log-probs and single tokens, and divides the values of the answer among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sglang_prefill_ext.frontend.beginnings import Beginning, shared_beginnings
from sglang_prefill_ext.frontend.prompt_batch import PackedGroup, flat_tokens
from sglang_prefill_ext.frontend.token.token_call import TokenCall
from sglang_prefill_ext.wire.arrays import NO_INTS, Float32Array, int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.sampling import Sampling

_MOST_MORE = 1 / 8
"""Most tokens computed once more to have a prefix that is not read, as a part of that prefix."""

_NO_SUCCESSOR = int_array([0])
"""Label at the last token of a prompt, which has no successor. It gives all reads equally many
labels; its value is not used."""


@dataclass(frozen=True, slots=True)
class ReadKind:
    """What calls must have in common to share a packed request.

    Attributes:
        reads_prompt: log-probs of prompt tokens are wanted.
        token_ids: tokens whose log-prob is wanted at every read.
        num_best: see `Labels`.
        draws: the next token is drawn.
        adapter: see `PackedRows`.
    """

    reads_prompt: bool
    token_ids: tuple[int, ...]
    num_best: int
    draws: bool = False
    adapter: str = ""

    @classmethod
    def of(cls, call: TokenCall) -> ReadKind:
        draws = call.sampling is not None
        has_start = call.start is not None
        return cls(has_start, call.token_ids or (), call.num_best, draws, call.adapter)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGroup(PackedGroup):
    """One packed request for some of the calls.

    Attributes:
        starts: the first read of each call, as a position in its prompt.
    """

    starts: list[int]

    def tables(self, values: Float32Array) -> list[Float32Array]:
        """Return the values of every call's reads, from its start to its prompt's last token.

        Each is ``[reads, values a read]``.
        """
        table = values.reshape(self.rows.num_reads, -1)
        prefix, in_prefix = self.rows.prefix_len, table[: self.rows.prefix_reads]
        bounds = self.rows.read_starts()
        found = []
        for start, first, last in zip(self.starts, bounds[:-1], bounds[1:], strict=True):
            own = table[first:last]
            if start < prefix:
                own = np.concatenate([in_prefix[len(in_prefix) - (prefix - start) :], own])
            found.append(own)
        return found


def pack_calls(
    calls: Sequence[TokenCall], kind: ReadKind, policy: PrefixPolicy | None = None
) -> list[TokenGroup]:
    """Pack calls of a kind; those that begin alike share a prefix, whose reads are shared, too.

    Args:
        policy: see `shared_beginnings`.
    """
    prompts = [call.ids for call in calls]
    starts = [call.first_read for call in calls]
    return [
        _group([calls[each] for each in beginning.members], beginning, kind)
        for beginning in shared_beginnings(prompts, kind.adapter, policy, starts)
    ]


def _group(calls: list[TokenCall], beginning: Beginning, kind: ReadKind) -> TokenGroup:
    members, prefix, repeated = beginning
    prompts = [call.ids for call in calls]
    starts = [call.first_read for call in calls]
    prefix = _shared_prefix(prefix, min(starts), len(calls))
    tokens, lens = flat_tokens(prompts, prefix)
    labels, label_lens = int_array(kind.token_ids), NO_INTS
    read_lens, prefix_reads = NO_INTS, 0
    if kind.reads_prompt:
        prefix_reads = max(0, prefix - min(starts))
        first_reads = np.maximum(starts, prefix)
        read_lens = (lens + prefix - first_reads).astype(np.int32)
        parts = [prompts[0][prefix - prefix_reads + 1 : prefix + 1]]
        for prompt, first in zip(prompts, first_reads.tolist(), strict=True):
            parts += [prompt[first + 1 :], _NO_SUCCESSOR]
        successors = np.concatenate(parts)[:, None]
        table = np.hstack([successors, np.broadcast_to(labels, (len(successors), len(labels)))])
        labels, label_lens = table.ravel(), np.full(len(table), table.shape[1], dtype=np.int32)
    sampling = Sampling.joined(call.sampling for call in calls)
    read = Labels(labels, label_lens, num_best=kind.num_best, sampling=sampling)
    rows = PackedRows(*(tokens, prefix, lens, read, read_lens, prefix_reads), adapter=kind.adapter)
    return TokenGroup(members, rows, repeated, starts=starts)


def _shared_prefix(common: int, first_read: int, num_calls: int) -> int:
    """How many of the tokens that calls have in common become their prefix.

    A prefix that is read cannot come from a cache. So a few tokens that are read are computed for
    each call, but not if they were many in comparison with those that a cache may have.
    """
    if first_read >= common:
        return common
    shared = common - 1  # the successor of every read in the prefix is the same in all rows
    more = (num_calls - 1) * (shared - first_read)
    return first_read if more <= first_read * _MOST_MORE else shared
