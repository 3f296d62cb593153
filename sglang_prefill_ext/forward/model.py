"""What the executor needs of a model; implemented at the border to SGLang."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.attention.way import HeadShape
from sglang_prefill_ext.forward.kv_pool import KVPool
from sglang_prefill_ext.wire.sampling import Sampling

Attend: TypeAlias = Callable[[int, LayerInputs], Tensor]
"""``(layer, inputs) -> [Q, H, Dv]``: attention of all tokens, in `Model.last_layer` of the read
positions alone."""


class Drawn(NamedTuple):
    """Tokens that were drawn, and log-probs (natural log) that they were drawn by.

    Attributes:
        tokens, log_probs: ``[n]``.
        top_log_probs, top_tokens: the most probable ones, ``[n, num_top]``.
        listed: log-probs of the tokens that were asked for, read by read.
    """

    tokens: Tensor
    log_probs: Tensor
    top_log_probs: Tensor
    top_tokens: Tensor
    listed: Tensor


@dataclass(frozen=True, slots=True)
class Overrides:
    """Embeddings that stand where those of some tokens would.

    Attributes:
        at: the tokens, int64 ``[n]``, n >= 1.
        embeds: ``[n, hidden]``, of any floating dtype.
    """

    at: Tensor
    embeds: Tensor


@dataclass(frozen=True, slots=True)
class ProductHead:
    """An output head whose logits are ``soft_cap * tanh(scale * hidden @ weight.T / soft_cap)``.

    Attributes:
        weight: ``[tokens, hidden]``; of this rank where ranks share the vocabulary.
        first: the token of its first row.
        scale: factor of every logit.
        soft_cap: bound of every scaled logit; 0 for none.
        gather: returns ``[ranks, n]``, what all ranks that share the vocabulary have given,
            ``[n]`` each; None where this rank has all of it.
    """

    weight: Tensor
    first: int = 0
    scale: float = 1.0
    soft_cap: float = 0.0
    gather: Callable[[Tensor], Tensor] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether ``hidden @ weight.T`` are the logits of all tokens."""
        return self.gather is None and self.scale == 1 and not self.soft_cap


class Model(Protocol):
    """A decoder or an encoder whose every layer calls `Attend` once."""

    device: torch.device
    dtype: torch.dtype
    """Of queries, keys and values."""
    heads: HeadShape
    causal: bool
    """Whether a token sees those before it only; in an encoder it sees its whole prompt."""
    longest_prompt: int | None
    """Tokens that have a position; None for more than a forward has."""
    vocab_size: int
    asynchronous: bool
    """Whether work runs on after a call returns (a GPU in the overlap event loop)."""
    vector_width: int
    """Numbers of the vector that the model itself makes of every row; 0 for a model whose hidden
    states are read with labels."""
    state_width: int
    """Numbers of the hidden state of which a head makes that vector; 0 where none is shown."""
    unit_length: bool
    """Whether these vectors have length 1."""
    last_layer: int | None
    """The layer that is asked for the read positions alone, as nothing but the read-out needs its
    attention output; None where the model cannot do without the rest."""
    pool: KVPool
    """Of the slots that held prefixes lie in."""

    def stream(self) -> AbstractContextManager[object]:
        """The stream on which this forward is launched."""

    def prepare(
        self,
        token_ids: Tensor,
        positions: Tensor,
        read_at: Tensor,
        row_lens: list[int],
        attend: Attend,
        overrides: Overrides | None = None,
        adapter: str = "",
        *,
        shortened: bool,
    ) -> Callable[[], Tensor]:
        """Make ready a packed forward that is read at R >= 1 positions.

        What is returned runs it on what the tensors hold then, each time that it is called, and
        needs nothing else of the host. It makes the final hidden states ``[R, hidden]``.
        Where the model makes vectors, these instead, each with its state behind it:
        ``[R, vector_width + state_width]``.

        Args:
            adapter: see `PackedRows`; holds until another forward is made ready.
            shortened: ask `last_layer`, if there is one, for these positions alone.

        Raises:
            PackedForwardError: there is no such adapter (any more).
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary ``[n, vocab_size]`` of n hidden states."""

    def draw(
        self,
        logits: Tensor,
        sampling: Sampling,
        positions: Tensor,
        num_top: int,
        listed: list[list[int]],
    ) -> Drawn:
        """Draw a token behind each of n positions.

        Args:
            logits: float32 ``[n, vocab_size]``; overwritten.
            sampling: of n rows, all of one `Draw`.
            positions: of the last tokens in their prompts, int64 ``[n]``.
            listed: tokens of every read.
        """

    def product_head(self) -> ProductHead | None:
        """The output head, if logits are a matrix product, scaled and capped; else None."""
