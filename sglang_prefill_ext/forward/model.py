"""The `Model` protocol: what the executor needs of a model; `border/model` implements it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeadShape, LayerInputs
from sglang_prefill_ext.forward.kv_pool import KVPool
from sglang_prefill_ext.forward.logits import ProductHead
from sglang_prefill_ext.layout.recurrence_plan import Recurrence
from sglang_prefill_ext.recurrent.layers import RecurrentInputs
from sglang_prefill_ext.wire.reads import Best
from sglang_prefill_ext.wire.sampling import Sampling

Attend: TypeAlias = Callable[[int, LayerInputs], Tensor]
"""``(layer, inputs) -> [Q, H, Dv]``: attention of all tokens or, in `Model.last_layer`, of the read
positions alone."""

Recur: TypeAlias = Callable[[int, RecurrentInputs], Tensor]
"""``(layer, inputs)``: the recurrence of all tokens, see `LayerRecurrence`."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """Embeddings that take the place of those of some tokens.

    Attributes:
        at: the tokens, int64 ``[n]``, n >= 1.
        embeds: ``[n, hidden]``, of any floating dtype.
    """

    at: Tensor
    embeds: Tensor


class Adapted(NamedTuple):
    """Consecutive tokens of a forward with one LoRA adapter.

    Attributes:
        adapter: its id; empty for none.
        tokens: how many there are, >= 1.
        reads: how many of the read positions are among them, >= 0.
    """

    adapter: str
    tokens: int
    reads: int


class Model(Protocol):
    """A decoder or an encoder whose every layer calls `Attend` or `Recur` once."""

    device: torch.device
    dtype: torch.dtype
    """Of queries, keys and values."""
    heads: tuple[HeadShape, ...]
    """The shapes of the layers' heads, each once."""
    causal: bool
    """Whether a token sees those before it only; in an encoder it sees its whole prompt."""
    longest_prompt: int | None
    """Most tokens of a prompt; None if there is no limit below that of a forward."""
    vocab_size: int
    asynchronous: bool
    """Whether calls return before the device is done (a GPU in the overlap event loop)."""
    vector_width: int
    """Width of the vector that the model itself makes of every row; 0 for a generative model, whose
    hidden states are read by labels."""
    state_width: int
    """Width of the hidden state from which a head makes that vector; 0 if the model does not return
    it."""
    unit_length: bool
    """Whether these vectors have length 1."""
    last_layer: int | None
    """The last layer, if it can compute attention of the read positions alone; only the read-out
    needs its output. None if the model needs that of all positions."""
    recurrence: Recurrence | None
    """What its recurrent layers have in common; None if there are no such layers."""
    pool: KVPool
    """The pool in which held prefixes lie."""
    alone: bool
    """Whether it is whole on this rank, so that no other rank takes part in its forwards."""

    def stream(self) -> AbstractContextManager[object]:
        """The stream on which this forward is launched."""

    def capturing(self) -> AbstractContextManager[object]:
        """The context in which graphs are captured, with the exchanges between ranks."""

    def prepare(
        self,
        token_ids: Tensor,
        positions: Tensor,
        read_at: Tensor,
        row_lens: list[int],
        attend: Attend,
        overrides: Overrides | None = None,
        adapted: Sequence[Adapted] = (),
        *,
        shortened: bool,
        recur: Recur | None = None,
    ) -> Callable[[], Tensor]:
        """Prepare a packed forward that is read at R >= 1 positions; return a function to run it.

        The function may be called several times, and captured into a graph: each call reads the
        current contents of the tensors, and nothing else that may change on the host. It returns
        the final hidden states ``[R, hidden]`` or, if the model makes vectors, these followed by
        their states: ``[R, vector_width + state_width]``.

        Args:
            adapted: parts that make up the forward; empty if none has an adapter. Adapters stay in
                effect until another forward is prepared.
            recur: of recurrent layers; None if there are none.
            shortened: compute attention of `last_layer`, if it is set, at the read positions alone.

        Raises:
            PackedForwardError: an adapter is not loaded (any more).
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary, ``[n, vocab_size]``, of n hidden states."""

    def draw(
        self,
        logits: Tensor,
        sampling: Sampling,
        positions: Tensor,
        num_top: int,
        listed: list[list[int]],
    ) -> tuple[Tensor, Best[Tensor]]:
        """Draw the next token of each of n reads.

        Args:
            logits: float32 ``[n, vocab_size]``; overwritten.
            sampling: parameters of the n reads, all of one kind of `Draw`.
            positions: positions of the read tokens in their prompts, int64 ``[n]``.
            listed: for every read, the tokens whose log-probs are returned, too.

        Returns:
            The log-probs of the listed tokens, read by read, flat. Then the drawn tokens, and the
            `num_top` most probable ones. All log-probs (natural log) are those of the distributions
            that tokens were drawn from.
        """

    def product_head(self) -> ProductHead | None:
        """The output head, if logits are a matrix product, scaled and capped; else None."""
