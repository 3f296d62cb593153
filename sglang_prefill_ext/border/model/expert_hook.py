"""Hook on SGLang's Triton experts: which entry of the tuned table a call takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
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

    def choice(
        self, w1: Tensor, w2: Tensor, dtype: torch.dtype, topk_ids: Tensor, flags: dict[str, Any]
    ) -> Choice | None:
        """What a call is to take; None is SGLang's own choice.

        Args:
            topk_ids: ``[tokens, top_k]``; the rest is that of `Call`.
        """
        if self._seen is not None:
            self._seen.append(Call(w1, w2, dtype, topk_ids.shape[1], flags))
        if self._forced is not None:
            return self._forced
        known = self._layers.get(w1.data_ptr())
        if known is None or topk_ids.shape[0] < LEAST_TOKENS:
            return None
        blocks, layer = known
        capturing = topk_ids.is_cuda and torch.cuda.is_current_stream_capturing()
        return blocks.entry(layer, topk_ids, capturing=capturing)


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

    Others of another length make it take another entry of the same tables whole: both projections,
    their TMA flags, and one block for both.
    """
    dtype = hidden_states.dtype
    choice = EXPERTS.choice(w1, w2, dtype, topk_ids, flags)
    if choice is None:
        return original(hidden_states, w1, w2, topk_ids, **flags)

    def prepare(entry_tokens: int) -> Any:
        return original(_of_length(entry_tokens, dtype), w1, w2, topk_ids, **flags)

    if isinstance(choice, Pair):
        return prepared_pair(prepare, choice)
    return prepare(choice.tokens)


@lru_cache(maxsize=256)
def _of_length(tokens: int, dtype: torch.dtype) -> Tensor:
    """Hidden states without memory; made once, as a layer's call should cost the host little."""
    return torch.empty((tokens, 0), dtype=dtype)
