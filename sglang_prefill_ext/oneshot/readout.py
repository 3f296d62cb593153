"""Read label values from hidden states without ever holding rows x vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sglang_prefill_ext.wire.packed import Int32Array


def label_values(
    hidden: Tensor,
    label_ids: Int32Array,
    label_lens: Int32Array,
    logits_of: Callable[[Tensor], Tensor],
    chunk_rows: int,
    *,
    normalised: bool,
) -> Tensor:
    """Return ``log softmax(logits)[label]`` (natural log) of every row's labels.

    A softmax over the labels alone needs no normalisation over the vocabulary; then the plain
    logits are returned, and `logits_of` may cover the labels only.

    Args:
        hidden: ``[rows, hidden]``, last positions of the rows.
        label_ids: columns of the logits to read, row by row, ``[sum(label_lens)]``.
        label_lens: labels a row, ``[rows]``; 0 rows give an empty result.
        logits_of: ``[n, hidden] -> [n, columns]``.
        chunk_rows: most rows whose logits exist at a time.

    Returns:
        float32 ``[sum(label_lens)]`` on the device of `hidden`.
    """
    rows = len(label_lens)
    ends = np.concatenate(([0], np.cumsum(label_lens, dtype=np.int64)))
    out = torch.empty(len(label_ids), dtype=torch.float32, device=hidden.device)
    for first in range(0, rows, chunk_rows):
        last = min(first + chunk_rows, rows)
        start, stop = int(ends[first]), int(ends[last])
        lens = label_lens[first:last]
        where = np.stack((np.repeat(np.arange(last - first), lens), label_ids[start:stop]))
        row, label = torch.from_numpy(where).to(hidden.device, non_blocking=True)
        logits = logits_of(hidden[first:last]).float()
        values = logits[row, label]
        out[start:stop] = values - logits.logsumexp(dim=-1)[row] if normalised else values
    return out
