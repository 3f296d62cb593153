"""Moving tokens between the flat layout and the rectangles of dense calls."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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


def in_token_order(
    grids: Sequence[TokenGrid], parts: Iterable[tuple[Tensor, Tensor]], num_tokens: int
) -> tuple[Tensor, Tensor]:
    """Join what dense calls have computed, each at one grid of the flat layout.

    Args:
        grids: at least one; together they name every token.
        parts: `out` `[B, N, H, Dv]` and `lse` `[B, N, H]` of each grid; not needed any more.
        num_tokens: of the result.

    Returns:
        `out` `[num_tokens, H, Dv]` and `lse` `[num_tokens, H]`; any strides.
    """
    if len(grids) == 1 and grids[0].is_contiguous:
        ((out, lse),) = parts
        return out.flatten(0, 1), lse.flatten(0, 1)
    joined: list[Tensor] = []
    for grid, part in zip(grids, parts, strict=True):
        joined = joined or [values.new_empty(num_tokens, *values.shape[2:]) for values in part]
        for values, tokens in zip(part, joined, strict=True):
            grid.scatter(values, tokens)
    out, lse = joined
    return out, lse
