"""Reads at given places of prompts, which packed rows know as their last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.wire.arrays import Int32Array, int_array
from sglang_prefill_ext.wire.stock_reason import StockReason


@dataclass(frozen=True, slots=True)
class ReadPlaces:
    """Each prompt is read from its first place on; at tokens in between nothing is asked for.

    Attributes:
        first: tokens before any read, which is how many prompts may share at most.
        lens: reads of each prompt; int32 ``[prompts]``.
        wanted: whether something is asked for at a read; bool ``[sum(lens)]``.
    """

    first: int
    lens: Int32Array
    wanted: NDArray[np.bool_]

    @classmethod
    def of(cls, prompt_lens: Sequence[int], places: Sequence[Sequence[int]]) -> ReadPlaces:
        """The reads of prompts.

        Args:
            places: of each prompt at least one, ascending.
        """
        lens = [tokens - own[0] for tokens, own in zip(prompt_lens, places, strict=True)]
        ends = np.cumsum(lens).tolist()
        wanted = np.zeros(ends[-1], dtype=np.bool_)
        for end, tokens, own in zip(ends, prompt_lens, places, strict=True):
            wanted[np.array(own) + (end - tokens)] = True
        return cls(min(own[0] for own in places), int_array(lens), wanted)


def places_of(prompts: Sequence[Sequence[int]], token: int) -> list[list[int]]:
    """Where a token stands in each prompt, ascending; maybe nowhere."""
    return [[place for place, each in enumerate(ids) if each == token] for ids in prompts]


def anchors_of(
    query: Sequence[int], prompts: Sequence[Sequence[int]], token: int
) -> list[list[int]]:
    """Where an extraction token stands in each prompt, which begins with the query.

    Raises:
        StockPathTaken: the query has it, or a prompt has not, both of which SGLang refuses.
    """
    anchors = places_of(prompts, token)
    if token in query or not all(anchors):
        raise StockPathTaken(StockReason.UNUSUAL_INPUT)
    return anchors
