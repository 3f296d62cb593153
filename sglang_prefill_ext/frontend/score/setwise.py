"""Setwise scoring: labels are read at every extraction token of an item, not at its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.pack import pack_rows
from sglang_prefill_ext.frontend.read_places import ReadPlaces
from sglang_prefill_ext.frontend.score.scores import Matrix
from sglang_prefill_ext.wire.checks import check_memory
from sglang_prefill_ext.wire.overrides import NO_OVERRIDES, OverrideArray
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels


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
    return pack_rows(
        list(prompts),
        Labels(label_ids, label_lens, labels.normalised),
        vocab_size,
        longest_prefix=reads.first,
        read_lens=reads.lens,
        overrides=overrides,
    )


def scores_by_item(scores: Matrix, rows: PackedRows) -> list[Matrix]:
    """Return a matrix ``[anchors, labels]`` for every item, of the scores of all anchors."""
    is_anchor = rows.read.lens_of(0, rows.num_reads) > 0
    ends = np.cumsum(np.add.reduceat(is_anchor, rows.read_starts()[:-1], dtype=np.int64)).tolist()
    return [scores[a:b] for a, b in zip([0, *ends], ends, strict=False)]
