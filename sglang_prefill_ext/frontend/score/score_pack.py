"""Packs scoring calls that bring embeddings, or are read at extraction tokens (setwise scoring)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.pack import FIELD, pack_token_ids
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.frontend.prompt_batch import ReadPlaces
from sglang_prefill_ext.frontend.score.placeholders import place_overrides
from sglang_prefill_ext.frontend.score.score_call import ScoreCall, prompts_of
from sglang_prefill_ext.wire.arrays import NO_OVERRIDES, FlatRows, OverrideArray, lens_of_rows
from sglang_prefill_ext.wire.checks import check_memory, flatten_ids
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


def pack_setwise_call(call: ScoreCall, labels: Labels, path: PackedPath) -> PackedRows:
    """Pack an eligible call that is read at extraction tokens; see `anchors_of`, `pack_setwise`."""
    query, items = prompts_of(call)
    prompts = [query + item for item in items]
    if isinstance(query, str):
        query = path.link.encode([query])[0] if query else []
        prompts = path.link.encode(prompts)
    anchors = anchors_of(query, prompts, call.score_extraction_token_id)
    return pack_setwise(prompts, anchors, labels, path.vocab_size, path.config)


def anchors_of(
    query: Sequence[int], prompts: Sequence[Sequence[int]], token: int
) -> list[list[int]]:
    """The positions of an extraction token in each prompt, which begins with the query; ascending.

    Raises:
        StockPathTaken: the query has the token, or a prompt does not; SGLang refuses both.
    """
    anchors = [[place for place, each in enumerate(ids) if each == token] for ids in prompts]
    if token in query or not all(anchors):
        raise StockPathTaken(StockReason.UNUSUAL_INPUT)
    return anchors


def pack_setwise(
    prompts: Sequence[list[int]],
    anchors: Sequence[Sequence[int]],
    labels: Labels,
    vocab_size: int,
    config: PrefillOnlyConfig,
    overrides: OverrideArray = NO_OVERRIDES,
) -> PackedRows:
    """Pack whole prompts whose labels are read at every anchor.

    Args:
        anchors: places in each prompt, see `ReadPlaces`.
        overrides: embeddings that negative ids name.

    Raises:
        RequestError: an id lies outside the vocabulary, or more labels are to be read than
            `check_memory` allows.
        TypeError: an element is not an integer.
    """
    reads = ReadPlaces.of(list(map(len, prompts)), anchors)
    counts = list(map(len, anchors))
    ids, lens = labels.ids, labels.lens_of(0, len(prompts))
    check_memory(config, numbers=int(np.dot(lens.astype(np.int64), counts)))
    own = np.split(ids, np.cumsum(lens)[:-1]) if len(labels.lens) else [ids] * len(prompts)
    label_ids = np.concatenate([np.tile(each, n) for each, n in zip(own, counts, strict=True)])
    label_lens = (np.repeat(lens, reads.lens) * reads.wanted).astype(np.int32)
    flat = flatten_ids(prompts, vocab_size, field=FIELD, overrides=len(overrides))
    read = Labels(label_ids, label_lens, labels.normalised)
    return reads.packed(FlatRows(flat, lens_of_rows(prompts)), read, overrides)
