"""Read label values and tokens from hidden states, without holding logits of reads x vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from prefill_kernels.label_readout import label_readout
from torch import Tensor

from sglang_prefill_ext.forward.logits import (
    LogitChunk,
    Pick,
    ProductHead,
    log_probs_at_labels,
    logits_at_labels,
    product,
    values_by_chunk,
)
from sglang_prefill_ext.forward.model import Model
from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.layout.tokens import ForwardLayout
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.wire.reads import Best, LabelKind, Reads
from sglang_prefill_ext.wire.sampling import Draw, Sampling

DRAW_MEMORY = 8
"""How many times more memory drawing takes than reading log-probs: a sampler sorts the vocabulary,
and uses float64 if draws have a seed."""


class LabelReader:
    """Reads ``log_softmax(logits)[label]`` (natural log) of every label, and the best tokens.

    A softmax over the labels alone needs no normalisation over the vocabulary. Reads that ask for
    no more get plain logits; if the head is a plain product, only the labels' columns are computed.

    Args:
        max_rows: most reads in one chunk of logits over the vocabulary.
        kernels: use the Triton kernel if the model's head allows it. The kernel multiplies one
            dtype; a head of another dtype than the hidden states (e.g. float32 in Falcon-H1) is
            read by torch, which converts the hidden states as SGLang does.
    """

    def __init__(self, model: Model, *, max_rows: int, kernels: bool) -> None:
        self._model = model
        self._max_rows = max_rows
        self._kernels = kernels

    def read(self, hidden: Tensor, plan: ForwardPlan) -> Tensor:
        """Return the values of a forward's reads; only reads that need it use the whole vocabulary.

        Args:
            hidden: ``[reads, hidden]``.

        Returns:
            float32 ``[plan.reads.num_values]``, in the order of the reads, on the device of
            `hidden`.
        """
        reads, kinds = plan.reads, plan.reads.by_kind()
        if len(kinds) == 1 and kinds[0][1].all():
            return self._read(hidden, reads, plan.layout, *kinds[0])
        lens = reads.value_lens
        out = torch.empty(reads.num_values, dtype=torch.float32, device=hidden.device)
        for kind, chosen in kinds:
            places = np.flatnonzero(np.repeat(chosen, lens))
            read_index, place_index = upload([np.flatnonzero(chosen), places], hidden.device)
            some = self._read(hidden[read_index], reads[chosen], plan.layout, kind, chosen)
            out[place_index] = some
        return out

    def _read(
        self,
        hidden: Tensor,
        reads: Reads,
        layout: ForwardLayout,
        kind: LabelKind,
        chosen: NDArray[np.bool_],
    ) -> Tensor:
        """Return the values of the chosen reads, which are all of one kind.

        Args:
            hidden, reads: those of the chosen reads alone.
            layout: of the whole forward.
            chosen: ``[reads of the forward]``.
        """
        logits_of, most = self._model.logits, self._max_rows
        if kind.draw is not Draw.NONE:
            positions = layout.positions()[layout.read_positions()[chosen]]
            assert reads.sampling is not None, "they are drawn"
            draw = drawn_tokens(kind.num_best, self._model, reads.sampling, positions)
            return values_by_chunk(hidden, reads, logits_of, max(1, most // DRAW_MEMORY), draw)
        if kind.num_best:
            return values_by_chunk(hidden, reads, logits_of, most, best_tokens(kind.num_best))
        head = self._model.product_head()
        if head is not None and self._kernels and head.weight.dtype == hidden.dtype:
            return _read_with_kernel(hidden, head, reads, normalised=kind.normalised)
        if head is not None and head.is_plain and not kind.normalised:
            labels, places = np.unique(reads.label_ids, return_inverse=True)
            (columns,) = upload([labels], hidden.device)
            reads = replace(reads, label_ids=places.astype(np.int32))
            logits_of = partial(product, head.weight[columns])
        pick = log_probs_at_labels if kind.normalised else logits_at_labels
        return values_by_chunk(hidden, reads, logits_of, most, pick)


def best_tokens(num_best: int) -> Pick:
    """Pick the most probable tokens; among equals the lowest id wins, as in greedy sampling."""

    def pick(chunk: LogitChunk) -> tuple[Tensor, Best[Tensor]]:
        log_probs = chunk.logits.log_softmax(dim=-1)
        # Like SGLang's sampler, compare logits: two that differ may have equal log-probs.
        token = chunk.logits.argmax(dim=-1, keepdim=True)
        top, ids = log_probs[:, :0], token[:, :0]
        if num_best > 1:
            top, ids = log_probs.topk(num_best - 1, dim=-1)
        best = Best(log_probs.gather(1, token), token.float(), top, ids.float())
        return chunk.at_labels(log_probs), best

    return pick


def drawn_tokens(
    num_best: int, model: Model, sampling: Sampling, positions: NDArray[np.int64]
) -> Pick:
    """Draw the next token of every read.

    Args:
        sampling: parameters of the reads, all of one kind of `Draw`.
        positions: positions of the read tokens in their prompts, int64 ``[reads]``.
    """

    def pick(chunk: LogitChunk) -> tuple[Tensor, Best[Tensor]]:
        (places,) = upload([positions[chunk.reads]], chunk.logits.device)
        labels = np.split(chunk.label_ids, np.cumsum(chunk.label_lens)[:-1])
        listed = [each.tolist() for each in labels]
        return model.draw(chunk.logits, sampling[chunk.reads], places, num_best - 1, listed)

    return pick


def _read_with_kernel(hidden: Tensor, head: ProductHead, reads: Reads, normalised: bool) -> Tensor:
    rows = np.repeat(np.arange(len(reads), dtype=np.int32), reads.lens)
    label, row = upload([reads.label_ids, rows], hidden.device)
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
    if head.gather is not None:
        logits, lse = _joined(logits, lse, head.gather)
    return logits if lse is None else logits - lse[row]


def _joined(
    logits: Tensor, lse: Tensor | None, gather: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor | None]:
    """Combine logits and log-sum-exp of all ranks, each of its own part of the vocabulary."""
    if lse is None:
        return gather(logits).amax(dim=0), None
    shards = gather(torch.cat((logits, lse)))  # one exchange for both
    return shards[:, : len(logits)].amax(dim=0), shards[:, len(logits) :].logsumexp(dim=0)
