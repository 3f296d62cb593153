"""Tokens that are drawn where others are simply the most probable ones."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.forward.model import Model
from sglang_prefill_ext.forward.readers.logit_chunks import LogitChunk
from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.wire.sampling import Sampling


class TokenDraw:
    """Draws a token behind every read; a `Pick`.

    Args:
        sampling: of the reads, all of one `Draw`.
        positions: of the reads in their prompts, int64 ``[reads]``.
    """

    def __init__(self, model: Model, sampling: Sampling, positions: NDArray[np.int64]) -> None:
        self._model = model
        self._sampling = sampling
        self._positions = positions

    def __call__(self, chunk: LogitChunk, num_best: int) -> tuple[Tensor, Tensor]:
        (positions,) = upload([self._positions[chunk.reads]], chunk.logits.device)
        labels = np.split(chunk.label_ids, np.cumsum(chunk.label_lens)[:-1])
        drawn = self._model.draw(
            chunk.logits,
            self._sampling[chunk.reads],
            positions,
            num_best - 1,
            [each.tolist() for each in labels],
        )
        token = torch.stack([drawn.log_probs, drawn.tokens.float()], dim=-1)
        best = torch.cat([token, drawn.top_log_probs, drawn.top_tokens.float()], dim=-1)
        return drawn.listed, best
