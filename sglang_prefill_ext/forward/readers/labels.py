"""Read label values from hidden states without ever holding rows x vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from prefill_kernels.label_readout import combine_shards, label_readout
from torch import Tensor

from sglang_prefill_ext.forward.model import Model, ProductHead
from sglang_prefill_ext.forward.readers.best_tokens import best_values
from sglang_prefill_ext.forward.readers.drawn_tokens import TokenDraw
from sglang_prefill_ext.forward.readers.logit_chunks import logit_chunks
from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.wire.packed import Int32Array
from sglang_prefill_ext.wire.sampling import Draw

DRAW_MEMORY = 8
"""How many times more memory a draw takes than a read: tokens are sorted, and drawn in double
precision where they are to be drawn again."""


class _Kind(NamedTuple):
    """What reads have in common that are read together."""

    num_best: int
    normalised: bool
    draw: Draw

    @classmethod
    def of(cls, number: int) -> _Kind:
        """The kind with a number of `_kind_numbers`."""
        rest, draw = divmod(number, len(Draw))
        return cls(rest // 2, bool(rest % 2), Draw(draw))


def _kind_numbers(plan: ForwardPlan) -> NDArray[np.int64]:
    return (2 * plan.num_best + plan.normalised) * len(Draw) + plan.draws


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
        ids, lens = plan.label_ids, plan.label_lens
        kind_of, asked = _kind_numbers(plan), plan.value_lens > 0
        kinds = sorted(set(kind_of[asked].tolist())) or [0]
        if len(kinds) == 1 and asked.all():
            kind = _Kind.of(kinds[0])
            return self._read(hidden, ids, lens, kind, self._draw(plan, kind, asked))
        out = torch.empty(plan.num_values, dtype=torch.float32, device=hidden.device)
        for number in kinds:
            kind, reads = _Kind.of(number), asked & (kind_of == number)
            labels, places = np.repeat(reads, lens), np.repeat(reads, plan.value_lens)
            read_index, place_index = upload(
                [np.flatnonzero(reads), np.flatnonzero(places)], hidden.device
            )
            draw = self._draw(plan, kind, reads)
            some = self._read(hidden[read_index], ids[labels], lens[reads], kind, draw)
            out[place_index] = some
        return out

    def _draw(self, plan: ForwardPlan, kind: _Kind, reads: NDArray[np.bool_]) -> TokenDraw | None:
        """How the tokens behind those reads, which are of that kind, are drawn."""
        if kind.draw is Draw.NONE:
            return None
        chosen = reads[plan.is_drawn]
        return TokenDraw(self._model, plan.sampling[chosen], plan.drawn_positions()[chosen])

    def _read(
        self, hidden: Tensor, ids: Int32Array, lens: Int32Array, kind: _Kind, draw: TokenDraw | None
    ) -> Tensor:
        logits_of = self._model.logits
        if draw is not None:
            most = max(1, self._max_rows // DRAW_MEMORY)
            return best_values(hidden, ids, lens, logits_of, most, kind.num_best, draw)
        if kind.num_best:
            return best_values(hidden, ids, lens, logits_of, self._max_rows, kind.num_best)
        head, normalised = self._model.product_head(), kind.normalised
        if head is not None and self._kernels:
            return _read_with_kernel(hidden, head, ids, lens, normalised=normalised)
        if head is not None and head.is_plain and not normalised and len(ids):
            labels, places = np.unique(ids, return_inverse=True)
            (columns,) = upload([labels], hidden.device)
            ids, logits_of = places.astype(np.int32), _Columns(head.weight[columns])
        return label_values(hidden, ids, lens, logits_of, self._max_rows, normalised=normalised)


class _Columns:
    """Logits of some tokens."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, hidden: Tensor) -> Tensor:
        return torch.matmul(hidden.to(self._weight.dtype), self._weight.T)


def _read_with_kernel(
    hidden: Tensor,
    head: ProductHead,
    label_ids: Int32Array,
    label_lens: Int32Array,
    normalised: bool,
) -> Tensor:
    rows = np.repeat(np.arange(len(label_lens), dtype=np.int32), label_lens)
    label, row = upload([label_ids, rows], hidden.device)
    logits, lse = label_readout(
        hidden,
        head.weight,
        label,
        row,
        normalised=normalised,
        vocab_start=head.first,
        scale=head.scale,
        softcap=head.soft_cap,
    )
    if head.gather is not None and len(label_ids):
        logits, lse = _joined(logits, lse, head.gather)
    return logits if lse is None else logits - lse[row]


def _joined(
    logits: Tensor, lse: Tensor | None, gather: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor | None]:
    """Of the whole vocabulary, from what this rank and the others made of their tokens."""
    if lse is None:
        return combine_shards(gather(logits), None)
    shards = gather(torch.cat((logits, lse)))  # one exchange for both
    return combine_shards(shards[:, : len(logits)], shards[:, len(logits) :])


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
        normalised: log-probs over all columns instead of logits.

    Returns:
        float32 ``[sum(label_lens)]`` on the device of `hidden`.
    """
    out = torch.empty(len(label_ids), dtype=torch.float32, device=hidden.device)
    for chunk in logit_chunks(hidden, label_ids, label_lens, logits_of, chunk_rows):
        # On a CPU in half the time of `logsumexp`, which makes a pass of each of its parts.
        table = chunk.logits.log_softmax(dim=-1) if normalised else chunk.logits
        out[chunk.labels] = chunk.at_labels(table)
    return out
