"""Read the most probable next tokens, without ever holding reads x vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from sglang_prefill_ext.oneshot.logit_chunks import LogitChunk, logit_chunks
from sglang_prefill_ext.oneshot.upload import upload
from sglang_prefill_ext.wire.packed import Int32Array

Pick: TypeAlias = Callable[[LogitChunk, int], tuple[Tensor, Tensor]]
"""``(reads, num_best) -> (labels' log-probs [labels], best tokens [reads, 2 * num_best])``"""


def greedy(chunk: LogitChunk, num_best: int) -> tuple[Tensor, Tensor]:
    """The most probable tokens; of equally probable ones a greedy sampler takes the lowest id."""
    total = chunk.logits.logsumexp(dim=-1, keepdim=True)
    best = _best(chunk.logits, num_best) - _only_values(total, num_best)
    return chunk.label_logits - total[chunk.read_of_label, 0], best


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
    lens = label_lens.astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(lens + 2 * num_best)))
    # A label's place is its number, moved by the best tokens of the reads before its own.
    moved = 2 * num_best * np.repeat(np.arange(len(lens)), lens)
    best_places = (starts[:-1] + lens)[:, None] + np.arange(2 * num_best)
    label_place, best_place = upload([np.arange(len(moved)) + moved, best_places], hidden.device)
    out = torch.empty(int(starts[-1]), dtype=torch.float32, device=hidden.device)
    for chunk in logit_chunks(hidden, label_ids, label_lens, logits_of, chunk_reads):
        labels, best = pick(chunk, num_best)
        out[label_place[chunk.labels]], out[best_place[chunk.reads]] = labels, best
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
