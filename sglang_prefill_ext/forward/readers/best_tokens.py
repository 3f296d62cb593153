"""Read the most probable next tokens, or drawn ones; each function returns a `Pick`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.forward.logits import LogitChunk, Pick
from sglang_prefill_ext.forward.model import Model
from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.wire.reads import Best
from sglang_prefill_ext.wire.sampling import Sampling


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
