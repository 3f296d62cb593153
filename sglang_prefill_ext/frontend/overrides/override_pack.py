"""Packs calls that bring embeddings of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.overrides.placeholders import (
    at_placeholders,
    place_at,
    place_overrides,
)
from sglang_prefill_ext.frontend.pack import FIELD, pack_token_ids
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.frontend.read_places import anchors_of, pack_setwise
from sglang_prefill_ext.frontend.score.score_call import ScoreCall, prompts_of
from sglang_prefill_ext.wire.arrays import EmbeddingKind, Int32Array, OverrideArray
from sglang_prefill_ext.wire.checks import flatten_ids
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.stock_reason import StockReason


def pack_overridden(call: ScoreCall, labels: Labels, path: PackedPath) -> PackedRows:
    """Pack an eligible call whose embeddings are arrays.

    Raises:
        StockPathTaken: an id lies outside the vocabulary, which SGLang refuses; or see
            `place_overrides` and `anchors_of`.
        RequestError: a prompt is empty, or see `checked_overrides` and `pack_setwise`.
    """
    query, items = prompts_of(call.listed())
    if isinstance(query, str):
        # SGLang joins the two as token ids here, not as texts.
        (query,), items = path.link.encode([query]), path.link.encode(items, continued=True)
    try:
        flatten_ids([query, *items], path.vocab_size, field=FIELD)
    except RequestError:  # SGLang reports wrong placeholders before wrong ids
        raise StockPathTaken(StockReason.UNUSUAL_INPUT) from None
    placed = place_overrides(call, query, items, path.embeddings)
    anchor = call.score_extraction_token_id
    if anchor is None:
        rest = (labels, path.vocab_size, placed.overrides)
        return pack_token_ids(placed.query, placed.items, False, *rest)
    # Searched in the original ids: an extraction token that is a placeholder has been replaced.
    anchors = anchors_of(query, [query + item for item in items], anchor)
    prompts = [placed.query + item for item in placed.items]
    return pack_setwise(prompts, anchors, labels, path.vocab_size, path.config, placed.overrides)


def place_of_vectors(
    call: EmbedCall, prompts: list[Int32Array], kind: EmbeddingKind
) -> tuple[list[Int32Array], OverrideArray]:
    """Put the embeddings of a call for vectors into its prompts; see `place_at`.

    Args:
        call: has embeddings, which are arrays.

    Raises:
        StockPathTaken, RequestError: see `place_overrides`.
    """
    positional: Sequence[Any] | None = call.positional
    if positional is None:
        positional = at_placeholders(call, prompts)
    return place_at(prompts, positional, kind)
