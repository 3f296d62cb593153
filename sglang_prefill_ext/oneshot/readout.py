"""Read label values from hidden states without ever holding rows x vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from prefill_kernels.label_readout import label_readout
from torch import Tensor

from sglang_prefill_ext.oneshot.best_tokens import best_values
from sglang_prefill_ext.oneshot.logit_chunks import logit_chunks
from sglang_prefill_ext.oneshot.model import Model
from sglang_prefill_ext.oneshot.planner import ForwardPlan
from sglang_prefill_ext.oneshot.upload import upload
from sglang_prefill_ext.wire.packed import Int32Array


class LabelReader:
    """``log softmax(logits)[label]`` (natural log) of every read's labels, and the best tokens.

    A softmax over the labels alone needs no normalisation over the vocabulary; where a forward
    asks for no more, plain logits are returned and only the labels' columns are computed.

    Args:
        max_rows: most reads whose logits over the vocabulary exist at a time.
        kernels: use the Triton kernel where the model's head allows it.
    """

    def __init__(self, model: Model, *, max_rows: int, kernels: bool) -> None:
        self._model = model
        self._max_rows = max_rows
        self._kernels = kernels

    def read(self, hidden: Tensor, plan: ForwardPlan) -> Tensor:
        """Read a forward; only reads that ask for it pass over the vocabulary.

        Args:
            hidden: ``[reads, hidden]``.

        Returns:
            float32 ``[plan.num_values]``, read by read (see `PackedRows`), on the device of
            `hidden`.
        """
        hidden, plan = _without_unasked(hidden, plan)
        ids, lens = plan.label_ids, plan.label_lens
        kind_of = 2 * plan.num_best + plan.normalised
        kinds = np.unique(kind_of).tolist()
        if len(kinds) <= 1:
            return self._read(hidden, ids, lens, *_kind(kinds))
        out = torch.empty(plan.num_values, dtype=torch.float32, device=hidden.device)
        for kind in kinds:
            reads = kind_of == kind
            labels, places = np.repeat(reads, lens), np.repeat(reads, plan.value_lens)
            read_index, place_index = upload(
                [np.flatnonzero(reads), np.flatnonzero(places)], hidden.device
            )
            some = self._read(hidden[read_index], ids[labels], lens[reads], *_kind([kind]))
            out[place_index] = some
        return out

    def _read(
        self, hidden: Tensor, ids: Int32Array, lens: Int32Array, num_best: int, normalised: bool
    ) -> Tensor:
        if num_best:
            return best_values(hidden, ids, lens, self._model.logits, self._max_rows, num_best)
        weight, head = self._model.head_weight(), self._model.logits
        if weight is not None and self._kernels:
            return _read_with_kernel(hidden, weight, ids, lens, normalised=normalised)
        if weight is not None and not normalised and len(ids):
            labels, places = np.unique(ids, return_inverse=True)
            (columns,) = upload([labels], hidden.device)
            ids, head = places.astype(np.int32), _Head(weight[columns])
        return label_values(hidden, ids, lens, head, self._max_rows, normalised=normalised)


def _without_unasked(hidden: Tensor, plan: ForwardPlan) -> tuple[Tensor, ForwardPlan]:
    """Leave out reads of which nothing is asked."""
    asked = plan.value_lens > 0
    if asked.all():
        return hidden, plan
    (index,) = upload([np.flatnonzero(asked)], hidden.device)
    kept = replace(
        plan,
        label_lens=plan.label_lens[asked],
        normalised=plan.normalised[asked],
        num_best=plan.num_best[asked],
    )
    return hidden[index], kept


def _kind(kinds: list[int]) -> tuple[int, bool]:
    """``(num_best, normalised)`` of the one kind, if any."""
    return (kinds[0] // 2, bool(kinds[0] % 2)) if kinds else (0, False)


class _Head:
    """An output head that is one matrix product."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, hidden: Tensor) -> Tensor:
        return torch.matmul(hidden.to(self._weight.dtype), self._weight.T)


def _read_with_kernel(
    hidden: Tensor, weight: Tensor, label_ids: Int32Array, label_lens: Int32Array, normalised: bool
) -> Tensor:
    rows = np.repeat(np.arange(len(label_lens), dtype=np.int32), label_lens)
    label, row = upload([label_ids, rows], hidden.device)
    logits, lse = label_readout(hidden, weight, label, row, normalised=normalised)
    return logits if lse is None else logits - lse[row]


def label_values(
    hidden: Tensor,
    label_ids: Int32Array,
    label_lens: Int32Array,
    logits_of: Callable[[Tensor], Tensor],
    chunk_rows: int,
    *,
    normalised: bool,
) -> Tensor:
    """Return the label values of every row in chunks of rows.

    Args:
        hidden: ``[rows, hidden]``, last positions of the rows.
        label_ids: columns of the logits to read, row by row, ``[sum(label_lens)]``.
        label_lens: labels a row, ``[rows]``; 0 rows give an empty result.
        logits_of: ``[n, hidden] -> [n, columns]``.
        chunk_rows: most rows whose logits exist at a time.
        normalised: subtract the log-sum-exp over all columns.

    Returns:
        float32 ``[sum(label_lens)]`` on the device of `hidden`.
    """
    out = torch.empty(len(label_ids), dtype=torch.float32, device=hidden.device)
    for chunk in logit_chunks(hidden, label_ids, label_lens, logits_of, chunk_rows):
        values = chunk.label_logits
        if normalised:
            values = values - chunk.logits.logsumexp(dim=-1)[chunk.read_of_label]
        out[chunk.labels] = values
    return out
