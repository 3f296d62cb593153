"""Moving tokens between the flat layout and the rectangles of dense calls."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.partial import partial_attention


class TokenGrid:
    """A rectangle `[B, N]` of token indices; copies nothing where the tokens are consecutive."""

    def __init__(self, index: NDArray[np.int64], device: torch.device) -> None:
        flat = index.reshape(-1)
        self._shape = index.shape
        self._start = int(flat[0])
        self.is_contiguous = bool((flat == np.arange(flat[0], flat[0] + flat.size)).all())
        """Whether the rectangle is a view of the flat tokens."""
        self._index = None if self.is_contiguous else torch.from_numpy(flat).to(device)

    def gather(self, tokens: Tensor) -> Tensor:
        """`[B, N, ...]` from `[tokens, ...]`."""
        picked = self._flat(tokens) if self._index is None else tokens.index_select(0, self._index)
        return picked.view(*self._shape, *tokens.shape[1:])

    def scatter(self, values: Tensor, tokens: Tensor) -> None:
        """Write `[B, N, ...]` to `[tokens, ...]`; where an index repeats, any one value stays."""
        if self._index is None:
            self._flat(tokens).copy_(values.flatten(0, 1))
        else:
            tokens.index_copy_(0, self._index, values.flatten(0, 1))

    def _flat(self, tokens: Tensor) -> Tensor:
        return tokens.narrow(0, self._start, self._shape[0] * self._shape[1])


def attend_into(
    queries: TokenGrid,
    keys: TokenGrid,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    *,
    mask: Tensor | None,
    soft_cap: float,
    out: Tensor,
    lse: Tensor,
) -> None:
    """Write `partial_attention` of a grid of queries over a grid of keys where the queries stand.

    Args:
        out: `[Q, H, Dv]`, of all queries.
        lse: float32 `[Q, H]`, likewise.
    """
    part_out, part_lse = partial_attention(
        *(queries.gather(q), keys.gather(k), keys.gather(v), scale), mask=mask, soft_cap=soft_cap
    )
    queries.scatter(part_out, out)
    queries.scatter(part_lse, lse)
