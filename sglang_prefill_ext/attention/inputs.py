"""What an attention layer is given: queries, keys, values and held prefixes, and its heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

HeldKV: TypeAlias = tuple[Tensor, Tensor]
"""Keys `[n, KH, D]` and values `[n, KH, Dv]` of one layer: of a held prefix of n tokens, or of a
pool of n slots, some of which a page table names."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of a layer on this rank, and the chunks that they see, see `LayerInputs`."""

    num_heads: int
    num_key_heads: int
    head_dim: int
    value_dim: int
    chunk: int = 0

    @property
    def group_size(self) -> int:
        """Query heads that share a key head."""
        return self.num_heads // self.num_key_heads

    @property
    def largest_dim(self) -> int:
        """The larger of the two head sizes, which a tile of keys or values must hold."""
        return max(self.head_dim, self.value_dim)


@dataclass(frozen=True, slots=True, eq=False)
class Latents:
    """What multi-head latent attention keeps of every token in place of its keys and values.

    DeepSeek-V2, arXiv 2405.04434, section 2.1.

    Attributes:
        compressed: `[T, R]`, of which keys and values of all heads are made.
        rotated: `[T, 1, r]`, the part of the keys with positions, which all heads share.
        expand: makes keys and values of both; for any number of tokens.
    """

    compressed: Tensor
    rotated: Tensor
    expand: Callable[[Tensor, Tensor], HeldKV]

    def kept(self, tokens: slice | Tensor) -> HeldKV:
        """What a pool keeps of some tokens, as keys `[n, 1, R + r]`, and the part of it that counts
        as values."""
        rows = torch.cat([self.compressed[tokens, None], self.rotated[tokens]], dim=-1)
        return rows, rows[..., : self.compressed.shape[1]]

    def expanded(self, kept: Tensor) -> HeldKV:
        """Make keys and values of the rows `[n, 1, R + r]` that a pool has kept."""
        width = self.compressed.shape[1]
        return self.expand(kept[:, 0, :width].contiguous(), kept[..., width:])


@dataclass(frozen=True, slots=True, eq=False)
class LayerInputs:
    """Queries, keys and values of one layer, with positions already encoded; any strides.

    The defaults are plain attention.

    Attributes:
        q: `[Q, H, D]`, of all tokens of the forward or of those that are read.
        k: `[T, KH, D]` of the whole forward; H is a multiple of KH.
        v: `[T, KH, Dv]` of the whole forward.
        scale: factor of the scores before the softmax.
        soft_cap: scores become ``soft_cap * tanh(score / soft_cap)`` before mask and softmax, as in
            Gemma 2; 0: no cap.
        window: how many tokens before itself a query sees, by position in its prompt; None: all.
            Hugging Face's ``sliding_window`` counts the query's own token, too.
        sinks: ``[H]``, any floating dtype: one more score per head in the denominator of the
            softmax, as in gpt-oss; None: no sinks.
        chunk: prompts are divided into chunks of so many tokens, and a query sees its own one only,
            as in Llama 4; 0: no chunks.
        latents: of which `k` and `v` were made; None: the layer has no latent attention.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    soft_cap: float = 0.0
    window: int | None = None
    sinks: Tensor | None = None
    chunk: int = 0
    latents: Latents | None = None

    @property
    def is_plain(self) -> bool:
        no_limit = self.window is None and not self.chunk
        return no_limit and not self.soft_cap and self.sinks is None

    @property
    def heads(self) -> HeadShape:
        """The shape of the layer's heads."""
        dims = self.q.shape[2], self.v.shape[2]
        return HeadShape(self.q.shape[1], self.k.shape[1], *dims, self.chunk)


Held: TypeAlias = Sequence[HeldKV | None]
"""One entry per group; None where the group holds nothing."""
