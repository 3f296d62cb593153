"""Read the most probable next tokens, without ever holding reads x vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sglang_prefill_ext.oneshot.upload import upload
from sglang_prefill_ext.wire.packed import Int32Array


def best_values(
    hidden: Tensor,
    label_ids: Int32Array,
    label_lens: Int32Array,
    logits_of: Callable[[Tensor], Tensor],
    chunk_reads: int,
    num_best: int,
) -> Tensor:
    """Return the labels' log-probs (natural log) of every read, and its best tokens.

    The first of them is the one that a greedy sampler takes: of equally probable tokens that with
    the lowest id.

    Args:
        hidden: ``[reads, hidden]``.
        label_ids: labels of the reads, read by read, ``[sum(label_lens)]``.
        label_lens: labels a read, ``[reads]``; may be 0.
        logits_of: ``[n, hidden] -> [n, vocabulary]``.
        chunk_reads: most reads whose logits exist at a time.
        num_best: >= 1, see `PackedRows`.

    Returns:
        float32 ``[sum(label_lens) + 2 * num_best * reads]``, read by read as `PackedRows` says.
        Ids are exact below 2 ** 24.
    """
    device, reads = hidden.device, len(label_lens)
    lens = label_lens.astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(lens + 2 * num_best)))
    out = torch.empty(int(starts[-1]), dtype=torch.float32, device=device)
    label_starts = np.concatenate(([0], np.cumsum(lens)))
    within = np.arange(len(label_ids)) - np.repeat(label_starts[:-1], lens)
    read_of_label = np.repeat(np.arange(reads), lens)
    label_places = starts[read_of_label] + within
    best_places = (starts[:-1] + lens)[:, None] + np.arange(2 * num_best)
    for first in range(0, reads, chunk_reads):
        last = min(first + chunk_reads, reads)
        some = slice(int(label_starts[first]), int(label_starts[last]))
        read, label, place, best_place = upload(
            [
                read_of_label[some] - first,
                label_ids[some].astype(np.int64),
                label_places[some],
                best_places[first:last],
            ],
            device,
        )
        logits = logits_of(hidden[first:last]).float()
        total = logits.logsumexp(dim=-1, keepdim=True)
        out[place] = logits[read, label] - total[read, 0]
        out[best_place] = _best(logits, num_best) - _only_values(total, num_best)
    return out


def _best(logits: Tensor, num_best: int) -> Tensor:
    """``[n, 2 * num_best]``: greedy value and id, then the highest values, and then their ids."""
    greedy = logits.argmax(dim=-1, keepdim=True)
    values, ids = logits.topk(num_best - 1, dim=-1)
    return torch.cat([logits.gather(1, greedy), greedy.float(), values, ids.float()], dim=-1)


def _only_values(total: Tensor, num_best: int) -> Tensor:
    """``[n, 2 * num_best]``: what normalises the values, and 0 at the ids."""
    more = num_best - 1
    zero = torch.zeros_like(total)
    return torch.cat([total, zero, total.expand(-1, more), zero.expand(-1, more)], dim=-1)
