"""Logits over the vocabulary, a few reads at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from sglang_prefill_ext.oneshot.upload import upload
from sglang_prefill_ext.wire.packed import Int32Array


@dataclass(frozen=True, slots=True)
class LogitChunk:
    """Consecutive reads.

    Attributes:
        reads, labels: which of all reads and of all labels they are.
        label_ids, label_lens: labels of these reads.
        logits: float32 ``[reads, columns]``.
        read_of_label: int64 ``[labels]``, rows of `logits`.
        label_logits: float32 ``[labels]``.
    """

    reads: slice
    labels: slice
    label_ids: Int32Array
    label_lens: Int32Array
    logits: Tensor
    read_of_label: Tensor
    label_logits: Tensor


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
    ends = np.concatenate(([0], np.cumsum(label_lens, dtype=np.int64)))
    for first in range(0, reads, chunk_reads):
        last = min(first + chunk_reads, reads)
        labels = slice(int(ends[first]), int(ends[last]))
        ids, lens = label_ids[labels], label_lens[first:last]
        reads_of_labels = np.repeat(np.arange(last - first), lens)
        read, label = upload([reads_of_labels, ids], hidden.device)
        logits = logits_of(hidden[first:last]).float()
        label_logits = logits[read, label]
        yield LogitChunk(slice(first, last), labels, ids, lens, logits, read, label_logits)
