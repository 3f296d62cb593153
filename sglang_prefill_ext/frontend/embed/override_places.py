"""Puts the embeddings of a call for vectors into its prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall, Positional
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.overrides import checked_overrides, numbered_overrides
from sglang_prefill_ext.wire.arrays import EmbeddingKind, Int32Array, OverrideArray
from sglang_prefill_ext.wire.stock_reason import StockReason


def place_of_vectors(
    call: EmbedCall, prompts: Sequence[Int32Array], kind: EmbeddingKind
) -> tuple[list[Int32Array], OverrideArray]:
    """Put the embeddings of a call for vectors into its prompts, at positions or placeholders.

    Args:
        call: has embeddings, which are arrays.

    Returns:
        The prompts, and the table that their negative ids name rows of.

    Raises:
        StockPathTaken: a prompt does not have as many placeholders as embeddings.
        RequestError: see `checked_overrides`.
    """
    positional = call.positional
    if positional is None:
        pairs = zip(prompts, call.embeds or (), strict=True)
        positional = [_at_placeholders(call.placeholder, *pair) for pair in pairs]
    matrices = [
        None if each is None else checked_overrides("embed_overrides", each.embeds, kind)
        for each in positional
    ]
    table, (ids,) = numbered_overrides([matrices])
    placed = []
    for prompt, each, own in zip(prompts, positional, ids, strict=True):
        changed = prompt.copy()
        if own is not None:
            changed[each.positions] = own
        placed.append(changed)
    return placed, table


def _at_placeholders(placeholder: int | None, prompt: Int32Array, embeds: Any) -> Positional | None:
    """The embeddings of a prompt with the positions of its placeholders."""
    if embeds is None:
        return None
    positions = np.flatnonzero(prompt == placeholder).tolist()
    if len(positions) != len(embeds):
        raise StockPathTaken(StockReason.UNUSUAL_INPUT)
    return Positional(embeds, positions)
