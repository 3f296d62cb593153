"""The output head, logits over the vocabulary for a chunk of reads at a time, and their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.wire.arrays import Int32Array, bounds_of
from sglang_prefill_ext.wire.reads import Best, Reads, answer_order


@dataclass(frozen=True, slots=True)
class ProductHead:
    """An output head whose logits are ``soft_cap * tanh(scale * hidden @ weight.T / soft_cap)``.

    Attributes:
        weight: ``[tokens, hidden]``; this rank's part if ranks share the vocabulary.
        first: the token id of its first row.
        scale: factor of every logit.
        soft_cap: bound of every scaled logit; 0 for none.
        gather: an all-gather over the ranks that share the vocabulary: takes ``[n]``, returns
            ``[ranks, n]``. None if this rank has the whole vocabulary.
    """

    weight: Tensor
    first: int = 0
    scale: float = 1.0
    soft_cap: float = 0.0
    gather: Callable[[Tensor], Tensor] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether ``hidden @ weight.T`` are the logits of all tokens."""
        return self.gather is None and self.scale == 1 and not self.soft_cap


def product(weight: Tensor, hidden: Tensor) -> Tensor:
    """Logits ``[n, tokens]`` of n hidden states, of the tokens whose rows `weight` has.

    As in SGLang, hidden states of another dtype are converted to that of the weight.
    """
    return torch.matmul(hidden.to(weight.dtype), weight.T)


@dataclass(frozen=True, slots=True)
class LogitChunk:
    """The logits of consecutive reads.

    Attributes:
        reads: their slice of all reads.
        label_ids, label_lens: labels of these reads, see `Reads`.
        logits: float32 ``[reads, columns]``.
    """

    reads: slice
    label_ids: Int32Array
    label_lens: Int32Array
    logits: Tensor

    def at_labels(self, table: Tensor) -> Tensor:
        """``[labels]``: for each label, its column of `table` in the row of its read.

        Args:
            table: ``[reads, columns]``.
        """
        if not len(self.label_ids):
            return table.new_empty(0)
        read_of_label = np.repeat(np.arange(len(self.label_lens)), self.label_lens)
        read, label = upload([read_of_label, self.label_ids], table.device)
        return table[read, label]


Pick: TypeAlias = Callable[[LogitChunk], tuple[Tensor, Best[Tensor] | None]]
"""Returns the labels' values, ``[labels]``, and the best tokens; may overwrite the logits."""


def logits_at_labels(chunk: LogitChunk) -> tuple[Tensor, None]:
    return chunk.at_labels(chunk.logits), None


def log_probs_at_labels(chunk: LogitChunk) -> tuple[Tensor, None]:
    # On a CPU this takes half the time of `logsumexp`, which makes several passes.
    return chunk.at_labels(chunk.logits.log_softmax(dim=-1)), None


def values_by_chunk(
    hidden: Tensor,
    reads: Reads,
    logits_of: Callable[[Tensor], Tensor],
    chunk_reads: int,
    pick: Pick,
) -> Tensor:
    """Return the values of at least one read, all of one kind.

    The logits of up to two chunks exist at a time.

    Args:
        hidden: ``[reads, hidden]``.
        logits_of: ``[n, hidden] -> [n, columns]``.
        chunk_reads: most reads of a chunk.

    Returns:
        float32 ``[reads.num_values]``, read by read, on the device of `hidden`.
    """
    ends = bounds_of(reads.lens)
    labels, best = [], []
    for first in range(0, len(reads), chunk_reads):
        here = slice(first, min(first + chunk_reads, len(reads)))
        ids = reads.label_ids[ends[here.start] : ends[here.stop]]
        logits = logits_of(hidden[here]).float()
        listed, taken = pick(LogitChunk(here, ids, reads.lens[here], logits))
        labels.append(listed)
        if taken is not None:
            best.append(torch.cat(taken, dim=-1))
    if len(labels) == 1 and not best:
        return labels[0]
    values = torch.cat([*labels, *(each.flatten() for each in best)])
    if not best or not len(reads.label_ids):
        return values
    (order,) = upload([answer_order(reads.lens, best[0].shape[1])], hidden.device)
    return values[order]
