"""The read-out of models whose answer is a vector a row: embeddings, classes, rewards."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.scheduling.planner import ForwardPlan


class VectorReader:
    """Returns of every row the first numbers of its vector and state, as many as the row asks for.

    Args:
        width: of the model's vectors, without the states that follow them.
        unit_length: the model's vectors have length 1; shortened ones are normalised to it again
            (Matryoshka embeddings, https://arxiv.org/abs/2205.13147).
    """

    def __init__(self, width: int, *, unit_length: bool) -> None:
        self._width = width
        self._unit_length = unit_length

    def read(self, vectors: Tensor, plan: ForwardPlan) -> Tensor:
        """Read the vectors of a forward.

        Args:
            vectors: ``[rows, width]`` or wider, as the model makes them.

        Returns:
            float32 ``[plan.reads.num_values]``, row by row, on the device of `vectors`.
        """
        lens = plan.reads.lens
        widest = int(lens.max(initial=self._width))
        assert widest <= vectors.shape[1], "wider than the model's vectors"
        vectors = vectors[:, :widest].float()
        if (lens == vectors.shape[1]).all():
            return vectors.flatten()
        (wanted,) = upload([lens.astype(np.int64)], vectors.device)
        columns = torch.arange(vectors.shape[1], device=vectors.device)
        beginnings = vectors * (columns < wanted[:, None])
        if self._unit_length:
            beginnings = normalize(beginnings, p=2, dim=-1)
        # Indexing by a mask would make the host wait for the size of the result.
        rows = torch.repeat_interleave(wanted, output_size=plan.reads.num_values)
        first = wanted.cumsum(0) - wanted
        numbers = torch.arange(plan.reads.num_values, device=vectors.device)
        return beginnings[rows, numbers - first[rows]]
