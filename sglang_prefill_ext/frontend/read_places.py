"""Packs prompts that are read at given places, not only at their last token.

The reads of a packed row are always its last tokens. So a prompt is read from its first place to
its end, and the reads in between ask for nothing. Setwise scoring reads labels at every extraction
token of an item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.pack import FIELD, shared_once
from sglang_prefill_ext.wire.arrays import (
    NO_INTS,
    NO_OVERRIDES,
    FlatRows,
    Int32Array,
    OverrideArray,
    int_array,
    lens_of_rows,
)
from sglang_prefill_ext.wire.checks import check_memory, flatten_ids
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.stock_reason import StockReason


@dataclass(frozen=True, slots=True)
class ReadPlaces:
    """The reads of each prompt: its tokens from its first place to its end.

    Attributes:
        first: the first place of any prompt, and so the longest prefix that they may share.
        lens: number of reads of each prompt; int32 ``[prompts]``.
        wanted: whether a read is one of the places; bool ``[sum(lens)]``.
    """

    first: int
    lens: Int32Array
    wanted: NDArray[np.bool_]

    @classmethod
    def of(cls, prompt_lens: Sequence[int], places: Sequence[Sequence[int]]) -> ReadPlaces:
        """The reads of prompts.

        Args:
            places: positions of tokens in each prompt, at least one, ascending.
        """
        lens = [tokens - own[0] for tokens, own in zip(prompt_lens, places, strict=True)]
        ends = np.cumsum(lens).tolist()
        wanted = np.zeros(ends[-1], dtype=np.bool_)
        for end, tokens, own in zip(ends, prompt_lens, places, strict=True):
            wanted[np.array(own) + (end - tokens)] = True
        return cls(min(own[0] for own in places), int_array(lens), wanted)


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
    rows = FlatRows(flat, lens_of_rows(prompts))
    tokens, prefix_len, suffix_lens = shared_once(NO_INTS, rows, most=reads.first)
    return PackedRows(
        tokens,
        prefix_len,
        suffix_lens,
        Labels(label_ids, label_lens, labels.normalised),
        read_lens=reads.lens,
        overrides=overrides,
    )
