"""Hook on SGLang's Triton experts: which entry of the tuned table a call takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sglang_prefill_ext.border.model.expert_pair import prepared_pair
from sglang_prefill_ext.forward.expert_blocks import ExpertBlocks
from sglang_prefill_ext.moe.policy import Choice, Pair

LEAST_TOKENS = 64
"""Shorter forwards keep SGLang's choice: they are decode steps, whose blocks are small."""


class Call(NamedTuple):
    """What SGLang asked of its Triton experts.

    Attributes:
        w1: up-projections, ``[experts, 2 * intermediate, hidden]``.
        w2: down-projections, ``[experts, hidden, intermediate]``; either may be packed or padded.
        dtype: of the activations.
        flags: the keyword arguments, which say how the weights are quantised.
    """

    w1: Tensor
    w2: Tensor
    dtype: torch.dtype
    top_k: int
    flags: dict[str, Any]


class ExpertHook:
    """What the hook of a process knows: a process runs one model."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[ExpertBlocks, int]] = {}
        self._seen: list[Call] | None = None
        self._forced: Choice | None = None

    def serve(self, layers: dict[int, tuple[ExpertBlocks, int]]) -> None:
        """Choose from now on.

        Args:
            layers: address of a layer's `Call.w1` -> the blocks of layers like it, and its number
                among them. Any other layer, such as one whose weights have moved, keeps SGLang's
                choice.
        """
        self._layers = layers

    @contextmanager
    def watching(self) -> Iterator[list[Call]]:
        """Note the calls that come meanwhile."""
        self._seen = []
        try:
            yield self._seen
        finally:
            self._seen = None

    @contextmanager
    def forcing(self, choice: Choice) -> Iterator[None]:
        """Have every call take one entry, or one of two, meanwhile."""
        self._forced = choice
        try:
            yield
        finally:
            self._forced = None

    def entry(self, call: Call, tokens: int, topk_ids: Tensor) -> Choice | None:
        """What a call is to take; None is SGLang's own choice."""
        if self._seen is not None:
            self._seen.append(call)
        if self._forced is not None:
            return self._forced
        if tokens < LEAST_TOKENS or (known := self._layers.get(call.w1.data_ptr())) is None:
            return None
        blocks, layer = known
        capturing = topk_ids.is_cuda and torch.cuda.is_current_stream_capturing()
        return blocks.entry(layer, tokens, topk_ids, capturing=capturing)


EXPERTS = ExpertHook()
"""Of this process."""


def with_chosen_block(
    original: Callable[..., Any],
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_ids: Tensor,
    **flags: Any,
) -> Any:
    """AROUND `_prepare_fused_moe_run`, which looks up the entry by the length of
    `hidden_states` and reads nothing else of them but their dtype.

    A view of another length makes it take another entry of the same tables whole: both
    projections, their TMA flags, and one block for both.
    """
    tokens, top_k = topk_ids.shape
    call = Call(w1, w2, hidden_states.dtype, top_k, flags)

    def prepare(entry_tokens: int) -> Any:
        view = hidden_states[:1].expand(entry_tokens, -1)
        return original(view, w1, w2, topk_ids, **flags)

    choice = EXPERTS.entry(call, tokens, topk_ids)
    if choice is None:
        return original(hidden_states, w1, w2, topk_ids, **flags)
    if isinstance(choice, Pair):
        return prepared_pair(prepare, choice)
    return prepare(choice.tokens)
