"""Hooks on SGLang's Triton experts: replace the entry of the tuned table that a call takes.

Two entries can be launched for one call, of which only one computes anything: a program of SGLang's
fused kernel first reads the number of rows, and returns if its own rows are beyond it. So if the
number of rows of an entry is 0, its launch computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sglang_prefill_ext.forward.expert_blocks import LEAST_TOKENS, ExpertBlocks, leave_one
from sglang_prefill_ext.moe.policy import Choice, Pair

_ALIGNMENT, _CONFIG = slice(9, 12), 14
"""Positions of the arguments of `invoke_fused_moe_kernel`: rows, experts of blocks and the number
of padded rows; and the configuration."""


class Call(NamedTuple):
    """The arguments of a call of SGLang's Triton experts.

    Attributes:
        w1: up-projections, ``[experts, 2 * intermediate, hidden]``.
        w2: down-projections, ``[experts, hidden, intermediate]``; both may be packed or padded.
        dtype: of the activations.
        flags: the keyword arguments, which say how the weights are quantised.
    """

    w1: Tensor
    w2: Tensor
    dtype: torch.dtype
    top_k: int
    flags: dict[str, Any]


class ExpertHook:
    """State of the hook in this process, which runs one model."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[ExpertBlocks, int]] = {}
        self._seen: list[Call] | None = None
        self._forced: Choice | None = None

    def serve(self, layers: dict[int, tuple[ExpertBlocks, int]]) -> None:
        """Choose entries from now on.

        Args:
            layers: address of a layer's `Call.w1` -> the `ExpertBlocks` of its group of like
                layers, and its number in the group. All other layers keep SGLang's choice, e.g.
                those whose weights have moved.
        """
        self._layers = layers

    @contextmanager
    def watching(self) -> Iterator[list[Call]]:
        """Record the calls within the context; yields their list."""
        self._seen = []
        try:
            yield self._seen
        finally:
            self._seen = None

    @contextmanager
    def forcing(self, choice: Choice) -> Iterator[None]:
        """Make every call within the context take this entry or pair."""
        self._forced = choice
        try:
            yield
        finally:
            self._forced = None

    def choice(
        self, w1: Tensor, w2: Tensor, dtype: torch.dtype, topk_ids: Tensor, flags: dict[str, Any]
    ) -> Choice | None:
        """Return the entry or pair for a call; None: SGLang's own choice.

        Args:
            topk_ids: ``[tokens, top_k]``; for the others see `Call`.
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
"""The hook's state in this process."""


def with_chosen_block(
    original: Callable[..., Any],
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_ids: Tensor,
    **flags: Any,
) -> Any:
    """AROUND `_prepare_fused_moe_run`: make it take the chosen entry.

    SGLang looks up the entry by the length of `hidden_states`, and reads nothing else of them but
    their dtype. So it gets hidden states of the length for which the chosen entry was tuned. It
    then takes that entry completely: both projections, their TMA flags, and one block for both.
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
    """Hidden states of that length without memory; cached, to save host time in every layer."""
    return torch.empty((tokens, 0), dtype=dtype)


class Prepared(NamedTuple):
    """What `_prepare_fused_moe_run` returns."""

    config: dict[str, Any]
    down_config: dict[str, Any] | None
    down_tma: bool
    up_tma: bool
    rows: Tensor
    experts: Tensor
    padded: Tensor


class PairedConfig(dict[str, Any]):
    """The first entry's configuration of a product, which also carries the second entry's launch.

    SGLang passes it on unchanged to `invoke_fused_moe_kernel`.

    Attributes:
        other: the configuration of the second entry.
        other_tma: whether the second entry reads its weights by TMA.
        alignment: rows, experts of blocks, and number of padded rows of the second entry.
    """

    def __init__(self, own: dict[str, Any], other: dict[str, Any], second: Prepared, tma: bool):
        super().__init__(own)
        self.other, self.other_tma = other, tma
        self.alignment = (second.rows, second.experts, second.padded)


def prepared_pair(prepare: Callable[[int], Any], pair: Pair) -> Prepared:
    """Align for both entries, choose on the device, and return the first entry's preparation.

    Its configurations carry the second entry, see `PairedConfig`.

    Args:
        prepare: SGLang's own preparation, given the tokens of an entry.
    """
    first = Prepared(*prepare(pair.first.tokens))
    second = Prepared(*prepare(pair.second.tokens))
    # With TMA, rows between the products are in the order of one entry's blocks.
    assert (first.down_tma, second.down_tma) == (False, False), pair
    leave_one(pair, (first.experts, first.padded), (second.experts, second.padded))
    up = PairedConfig(first.config, second.config, second, second.up_tma)
    downs = first.down_config or first.config, second.down_config or second.config
    return first._replace(config=up, down_config=PairedConfig(*downs, second, tma=False))


def with_both_entries(original: Callable[..., Any], *args: Any, **flags: Any) -> None:
    """AROUND `invoke_fused_moe_kernel`, which a layer's experts call for each product.

    For a pair, launch the first entry and then the second.
    """
    original(*args, **flags)
    config = args[_CONFIG]
    if isinstance(config, PairedConfig):
        second = list(args)
        second[_ALIGNMENT], second[_CONFIG] = config.alignment, config.other
        original(*second, **{**flags, "b_use_tma": config.other_tma})
