"""Random requests as nested lists, with which packed rows are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec
import numpy as np
from hypothesis import strategies as st

from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.reads import LabelKind, Reads
from sglang_prefill_ext.wire.sampling import WHOLE_VOCABULARY, Draw

VOCAB = 97

Params: TypeAlias = dict[str, Any]
"""Arguments of `Sampling.one`."""


@dataclass(frozen=True)
class PlainRequest:
    """The same information as `PackedRows`, one Python list a row."""

    prefix: list[int]
    suffixes: list[list[int]]
    labels: list[list[int]]
    shared_labels: bool
    adapter: str = ""

    @property
    def prompts(self) -> list[list[int]]:
        return [self.prefix + suffix for suffix in self.suffixes]

    @property
    def num_tokens(self) -> int:
        """Tokens to compute: the prefix once, every suffix once."""
        return len(self.prefix) + sum(map(len, self.suffixes))

    def pack(self) -> PackedRows:
        tokens = self.prefix + [token for suffix in self.suffixes for token in suffix]
        sent = self.labels[:1] if self.shared_labels else self.labels
        return PackedRows(
            int_array(tokens),
            len(self.prefix),
            int_array([len(suffix) for suffix in self.suffixes]),
            Labels(
                int_array([label for labels in sent for label in labels]),
                int_array([] if self.shared_labels else [len(labels) for labels in sent]),
            ),
            adapter=self.adapter,
        )


def asking(rows: PackedRows, **fields: Any) -> PackedRows:
    """The same rows with another read, see `Labels`."""
    return replace(rows, read=msgspec.structs.replace(rows.read, **fields))


def labels_by_read(rows: PackedRows) -> list[list[int]]:
    """The labels of every read."""
    reads = rows.read.part(0, rows.num_reads, slice(0, 0), np.empty(0, np.int64))
    return [ids.tolist() for ids in np.split(reads.label_ids, np.cumsum(reads.lens)[:-1])]


def reads_of(labels: list[list[int]]) -> Reads:
    """Reads of log-probs of their own labels."""
    count, ids = len(labels), int_array([label for own in labels for label in own])
    kinds = np.full(count, LabelKind(0, True, Draw.NONE).number)
    return Reads(ids, int_array(list(map(len, labels))), kinds, None)


def token_lists(min_size: int = 0, max_size: int = 8) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, VOCAB - 1), min_size=min_size, max_size=max_size)


@st.composite
def plain_requests(
    draw: st.DrawFn, *, max_prefix: int = 12, max_suffix: int = 5, max_rows: int = 7
) -> PlainRequest:
    suffixes = draw(st.lists(token_lists(1, max_suffix), min_size=1, max_size=max_rows))
    label_lists = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3, unique=True)
    shared = draw(st.booleans())
    if shared:
        labels = [draw(label_lists)] * len(suffixes)
    else:
        labels = [draw(label_lists) for _ in suffixes]
    return PlainRequest(draw(token_lists(0, max_prefix)), suffixes, labels, shared)


def sampling_params() -> st.SearchStrategy[Params]:
    return st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.7, 1.0, 2.5]),
            "top_p": st.sampled_from([1.0, 0.9, 0.3]),
            "min_p": st.sampled_from([0.0, 0.1]),
            "top_k": st.sampled_from([WHOLE_VOCABULARY, 1, 4]),
            "seed": st.integers(-(2**63), 2**63 - 1),
            "biases": st.dictionaries(
                st.integers(0, VOCAB - 1), st.floats(-5, 5, width=32), max_size=3
            ),
            "other_bias": st.sampled_from([0.0, -math.inf]),
        }
    )
