"""The special tokens that a tokenizer puts around a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from sglang_prefill_ext.wire.arrays import NO_INTS, FlatRows, Int32Array, int_array


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Special token ids before and after those of a text, int32."""

    before: Int32Array
    after: Int32Array

    def around(self, rows: FlatRows) -> FlatRows:
        """Return every row with the special tokens around it."""
        return with_ids(rows, self.before, self.after)


NO_FRAME = Frame(NO_INTS, NO_INTS)


def with_ids(rows: FlatRows, before: Int32Array, after: Int32Array) -> FlatRows:
    """Return every row with the given ids before and after its own."""
    if not len(before) and not len(after):
        return rows
    starts = rows.starts()
    places = np.stack([starts, starts + rows.counts], axis=1)
    places = np.repeat(places.ravel(), np.tile([len(before), len(after)], len(rows)))
    added = np.tile(np.concatenate([before, after]), len(rows))
    counts = rows.counts + np.int32(len(before) + len(after))
    return FlatRows(np.insert(rows.values, places, added), counts)


def frame_of(post_processor: Mapping[str, Any] | None) -> Frame | None:
    """Return what a post-processor adds to a single text; None if that is not known.

    Args:
        post_processor: as in ``tokenizer.json``.
    """
    if post_processor is None:
        return NO_FRAME
    match post_processor["type"]:
        case "ByteLevel":  # it changes offsets only
            return NO_FRAME
        case "BertProcessing" | "RobertaProcessing":
            (_, first), (_, last) = post_processor["cls"], post_processor["sep"]
            return Frame(int_array([first]), int_array([last]))
        case "TemplateProcessing":
            return _of_template(post_processor)
        case "Sequence":
            return _of_sequence(post_processor["processors"])
    return None


def _of_template(template: Mapping[str, Any]) -> Frame | None:
    parts = template["single"]
    texts = [place for place, part in enumerate(parts) if "Sequence" in part]
    if len(texts) != 1:
        return None
    ids = [
        [] if "Sequence" in part else template["special_tokens"][part["SpecialToken"]["id"]]["ids"]
        for part in parts
    ]
    before, after = ids[: texts[0]], ids[texts[0] :]
    return Frame(int_array(list(chain(*before))), int_array(list(chain(*after))))


def _of_sequence(processors: list[Mapping[str, Any]]) -> Frame | None:
    """The frame of processors in sequence; each adds its tokens around those of the ones before."""
    before = after = NO_INTS
    for processor in processors:
        frame = frame_of(processor)
        if frame is None:
            return None
        before = np.concatenate([frame.before, before])
        after = np.concatenate([after, frame.after])
    return Frame(before, after)
