"""Attention by dense calls on rectangles of tokens, which are built once a forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.inputs import Held, LayerInputs
from sglang_prefill_ext.attention.partial import finish_dense, partial_attention
from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.layout.dense_plan import PrefixSpan
from sglang_prefill_ext.layout.tokens import ForwardLayout


class DenseCall:
    """One call of `partial_attention`, with B tiles of M queries and K keys.

    Args:
        query_index: `[B, M]` number of each query.
        key_index: `[B, K]` number of each key.
        result_index: `[B, M]` where the results go; None: to the places of the queries.
        mask: see `partial_attention`; a function makes it anew in every layer.
        is_causal: see `partial_attention`.
    """

    def __init__(
        self,
        query_index: NDArray[np.int64],
        key_index: NDArray[np.int64],
        device: torch.device,
        *,
        result_index: NDArray[np.int64] | None = None,
        mask: NDArray[np.float32] | Callable[[], Tensor] | None = None,
        is_causal: bool = False,
    ) -> None:
        self._queries = TokenGrid(query_index, device)
        self._keys = TokenGrid(key_index, device)
        self.results = self._queries if result_index is None else TokenGrid(result_index, device)
        self._mask = torch.from_numpy(mask).to(device) if isinstance(mask, np.ndarray) else mask
        self._is_causal = is_causal

    def attend(self, inputs: LayerInputs) -> tuple[Tensor, Tensor]:
        """`out` `[B, M, H, Dv]` and `lse` `[B, M, H]` of the queries."""
        keys = self._keys
        return partial_attention(
            *(self._queries.gather(inputs.q), keys.gather(inputs.k), keys.gather(inputs.v)),
            inputs.scale,
            mask=self._mask() if callable(self._mask) else self._mask,
            is_causal=self._is_causal,
            soft_cap=inputs.soft_cap,
        )


class DenseCalls:
    """Attention over the layout of one forward, built once and called by every layer.

    Args:
        num_queries: Q.
        calls: they write the result of every query.
        padded: they write to the place behind the last query, too.
        copied_groups: groups whose held K/V the calls find behind the keys of the forward.
        spans: prefixes that the calls leave out, to be merged.
    """

    def __init__(
        self,
        layout: ForwardLayout,
        num_queries: int,
        calls: Sequence[DenseCall],
        *,
        padded: bool = False,
        copied_groups: Iterable[int] = (),
        spans: Sequence[PrefixSpan] = (),
    ) -> None:
        self._layout = layout
        self._num_queries = num_queries
        self._calls = calls
        self._padded = padded
        self._copied_groups = copied_groups
        self._spans = spans

    def forward(self, inputs: LayerInputs, held: Held) -> Tensor:
        """Attention of one layer.

        Args:
            inputs: the queries, and the window if any, that were planned.

        Returns:
            `[Q, H, Dv]`, in the dtype of the queries.

        Raises:
            PackingError: an input does not have the shape that the layout asks for.
        """
        _check_inputs(self._layout, self._num_queries, inputs, held)
        with_copies = _with_held(inputs, [held[group] for group in self._copied_groups])
        parts = (call.attend(with_copies) for call in self._calls)
        grids = [call.results for call in self._calls]
        out, lse = in_token_order(grids, parts, self._num_queries + self._padded)
        if self._padded:
            out, lse = out[: self._num_queries], lse[: self._num_queries]
        return finish_dense(self._spans, out, lse, inputs, held)


class TokenGrid:
    """A rectangle `[B, N]` of token indices; if they are consecutive, `gather` is a view."""

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
        """Write `[B, N, ...]` to `[tokens, ...]`; if an index repeats, any of its values stays."""
        if self._index is None:
            self._flat(tokens).copy_(values.flatten(0, 1))
        else:
            tokens.index_copy_(0, self._index, values.flatten(0, 1))

    def _flat(self, tokens: Tensor) -> Tensor:
        return tokens.narrow(0, self._start, self._shape[0] * self._shape[1])


def in_token_order(
    grids: Sequence[TokenGrid], parts: Iterable[tuple[Tensor, Tensor]], num_tokens: int
) -> tuple[Tensor, Tensor]:
    """Write the results of dense calls, one per grid, in the order of the tokens.

    Args:
        grids: at least one; together they name every token.
        parts: `out` `[B, N, H, Dv]` and `lse` `[B, N, H]` of each grid; the result may share their
            memory.
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


def _check_inputs(layout: ForwardLayout, num_queries: int, inputs: LayerInputs, held: Held) -> None:
    """Raise PackingError unless the inputs have the token counts of the layout."""
    lens = [0 if pair is None else pair[0].shape[0] for pair in held]
    wanted = layout.held.tolist()
    if lens != wanted:
        raise PackingError(f"held has {lens} tokens per group, the layout says {wanted}")
    for name, count in (("q", num_queries), ("k", layout.num_tokens), ("v", layout.num_tokens)):
        tokens = getattr(inputs, name).shape[0]
        if tokens != count:
            raise PackingError(
                f"{name} has {tokens} tokens, the layout has {count}; "
                "drop padding tokens before attention"
            )


def _with_held(inputs: LayerInputs, held: Held) -> LayerInputs:
    """Return inputs with the K/V of held prefixes, in order, appended to those of the forward."""
    pairs = [pair for pair in held if pair is not None]
    if not pairs:
        return inputs
    keys, values = zip(*pairs, strict=True)
    return replace(inputs, k=torch.cat([inputs.k, *keys]), v=torch.cat([inputs.v, *values]))
