"""Logits over the vocabulary, a few reads at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.wire.packed import Int32Array


@dataclass(frozen=True, slots=True)
class LogitChunk:
    """Consecutive reads.

    Attributes:
        reads, labels: which of all reads and of all labels they are.
        label_ids, label_lens: labels of these reads.
        logits: float32 ``[reads, columns]``.
    """

    reads: slice
    labels: slice
    label_ids: Int32Array
    label_lens: Int32Array
    logits: Tensor

    def at_labels(self, table: Tensor) -> Tensor:
        """``[labels]`` of ``[reads, columns]``: the column that each label names, of its read."""
        if not len(self.label_ids):
            return table.new_empty(0)
        read_of_label = np.repeat(np.arange(len(self.label_lens)), self.label_lens)
        read, label = upload([read_of_label, self.label_ids], table.device)
        return table[read, label]


def logit_chunks(
    hidden: Tensor,
    label_ids: Int32Array,
    label_lens: Int32Array,
    logits_of: Callable[[Tensor], Tensor],
    chunk_reads: int,
) -> Iterator[LogitChunk]:
    """Yield the logits of all reads, in order; those of two chunks exist at a time.

    Args:
        hidden: ``[reads, hidden]``.
        label_ids: columns of the logits to read, read by read, ``[sum(label_lens)]``.
        label_lens: labels a read, ``[reads]``.
        logits_of: ``[n, hidden] -> [n, columns]``.
        chunk_reads: most reads of a chunk.
    """
    reads = len(label_lens)
    ends = np.concatenate(([0], label_lens.cumsum(dtype=np.int64)))
    for first in range(0, reads, chunk_reads):
        last = min(first + chunk_reads, reads)
        labels = slice(int(ends[first]), int(ends[last]))
        logits = logits_of(hidden[first:last]).float()
        reads_here = slice(first, last)
        yield LogitChunk(reads_here, labels, label_ids[labels], label_lens[reads_here], logits)
