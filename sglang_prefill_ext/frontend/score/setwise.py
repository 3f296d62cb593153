"""Setwise scoring: labels are read at every extraction token of an item, not at its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.pack import pack_rows
from sglang_prefill_ext.frontend.read_places import ReadPlaces
from sglang_prefill_ext.frontend.score.scores import Matrix, scores_of_reads
from sglang_prefill_ext.wire.overrides import NO_OVERRIDES, OverrideArray
from sglang_prefill_ext.wire.packed import Float32Array, Int32Array, PackedRows
from sglang_prefill_ext.wire.sizes import check_memory


def pack_setwise(
    prompts: Sequence[list[int]],
    anchors: Sequence[Sequence[int]],
    labels: tuple[Int32Array, Int32Array],
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
    ids, lens = labels
    lens = lens if len(lens) else np.full(len(prompts), len(ids), dtype=np.int32)
    check_memory(config, numbers=int(np.dot(lens.astype(np.int64), counts)))
    own = np.split(ids, np.cumsum(lens)[:-1]) if len(labels[1]) else [ids] * len(prompts)
    label_ids = np.concatenate([np.tile(each, n) for each, n in zip(own, counts, strict=True)])
    label_lens = (np.repeat(lens, reads.lens) * reads.wanted).astype(np.int32)
    return pack_rows(
        list(prompts),
        (label_ids, label_lens),
        vocab_size,
        longest_prefix=reads.first,
        read_lens=reads.lens,
        overrides=overrides,
    )


def setwise_scores(
    values: Float32Array, rows: PackedRows, *, apply_softmax: bool, temperature: float
) -> list[Matrix]:
    """Return a matrix ``[anchors, labels]`` for every item; see `scores_from_values`."""
    is_anchor = rows.label_lens > 0
    scores = scores_of_reads(
        np.split(values, np.cumsum(rows.label_lens[is_anchor])[:-1]),
        apply_softmax=apply_softmax,
        temperature=temperature,
    )
    ends = np.cumsum(np.add.reduceat(is_anchor, rows.read_starts()[:-1], dtype=np.int64)).tolist()
    return [scores[a:b] for a, b in zip([0, *ends], ends, strict=False)]
