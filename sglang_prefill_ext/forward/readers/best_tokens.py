"""Read the most probable next tokens, without ever holding reads x vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from sglang_prefill_ext.forward.readers.logit_chunks import LogitChunk, logit_chunks
from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.wire.packed import Int32Array

Pick: TypeAlias = Callable[[LogitChunk, int], tuple[Tensor, Tensor]]
"""``(reads, num_best) -> (labels' log-probs [labels], best tokens [reads, 2 * num_best])``"""


def greedy(chunk: LogitChunk, num_best: int) -> tuple[Tensor, Tensor]:
    """The most probable tokens; of equally probable ones a greedy sampler takes the lowest id."""
    log_probs = chunk.logits.log_softmax(dim=-1)
    # Of the logits, as SGLang's sampler does: the log-probs of two that differ may be equal.
    token = chunk.logits.argmax(dim=-1, keepdim=True)
    best = [log_probs.gather(1, token), token.float()]
    if num_best > 1:
        values, ids = log_probs.topk(num_best - 1, dim=-1)
        best += [values, ids.float()]
    return chunk.at_labels(log_probs), torch.cat(best, dim=-1)


def best_values(
    hidden: Tensor,
    label_ids: Int32Array,
    label_lens: Int32Array,
    logits_of: Callable[[Tensor], Tensor],
    chunk_reads: int,
    num_best: int,
    pick: Pick = greedy,
) -> Tensor:
    """Return the labels' log-probs (natural log) of every read, and its best tokens.

    Args:
        hidden: ``[reads, hidden]``.
        label_ids: labels of the reads, read by read, ``[sum(label_lens)]``.
        label_lens: labels a read, ``[reads]``; may be 0.
        logits_of: ``[n, hidden] -> [n, vocabulary]``.
        chunk_reads: most reads whose logits exist at a time.
        num_best: >= 1, see `PackedRows`.
        pick: takes what is wanted from the logits, and may overwrite them.

    Returns:
        float32 ``[sum(label_lens) + 2 * num_best * reads]``, read by read as `PackedRows` says.
        Ids are exact below 2 ** 24.
    """
    more = 2 * num_best
    size = len(label_ids) + more * len(label_lens)
    out = torch.empty(size, dtype=torch.float32, device=hidden.device)
    for chunk in logit_chunks(hidden, label_ids, label_lens, logits_of, chunk_reads):
        start = chunk.labels.start + more * chunk.reads.start
        stop = chunk.labels.stop + more * chunk.reads.stop
        out[start:stop] = _read_by_read(*pick(chunk, num_best), chunk.label_lens)
    return out


def _read_by_read(labels: Tensor, best: Tensor, label_lens: Int32Array) -> Tensor:
    """Values of a chunk in the order of the answer; arguments as in `Pick` and `LogitChunk`."""
    if not len(labels):
        return best.flatten()
    reads, more = best.shape
    lens = label_lens.astype(np.int64)
    # A label's place is its number, moved by the best tokens of the reads before its own.
    label_place = np.arange(len(labels)) + more * np.repeat(np.arange(reads), lens)
    is_label = np.zeros(len(labels) + more * reads, dtype=np.bool_)
    is_label[label_place] = True
    source = np.where(is_label, np.cumsum(is_label) - 1, len(labels) - 1 + np.cumsum(~is_label))
    (source_index,) = upload([source], labels.device)
    return torch.cat([labels, best.flatten()])[source_index]
