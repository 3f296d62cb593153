from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.answers import flat_scores, label_rows, scores_by_item
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.score.score_pack import anchors_of, pack_setwise
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from tests.unit.wire.strategies import labels_by_read

VOCAB, ANCHOR = 9, 2
CONFIG = PrefillOnlyConfig()
PROMPTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=4)
LABELS = [[5], [6, 7], [8, 5]]


def value(before: list[int], label: int) -> float:
    """A log-prob of a label that depends on all tokens up to the read."""
    return -0.01 * label - sum(place * token for place, token in enumerate(before, start=1)) / 100


def answer(rows: PackedRows) -> list[float]:
    """The answer that a scheduler would give."""
    tokens, starts = rows.tokens.tolist(), rows.read_starts()
    prefix, ends = tokens[: rows.prefix_len], rows.prefix_len + rows.suffix_lens.cumsum()
    found, labels = [], labels_by_read(rows)
    for row, end in enumerate(ends.tolist()):
        prompt = prefix + tokens[end - int(rows.suffix_lens[row]) : end]
        reads = int(rows.read_lens[row])
        for number in range(reads):
            before = prompt[: len(prompt) - reads + number + 1]
            read = int(starts[row]) + number
            found += [value(before, label) for label in labels[read]]
    return found


@given(PROMPTS, st.booleans(), st.booleans(), st.data())
def test_labels_are_read_at_every_anchor(
    prompts: list[list[int]], shared: bool, softmax: bool, data: st.DataObject
) -> None:
    assume(all(ANCHOR in prompt for prompt in prompts))
    labels = [LABELS[1] if shared else data.draw(st.sampled_from(LABELS)) for _ in prompts]
    packed = Labels(int_array(LABELS[1]))
    if not shared:
        flat = [label for one in labels for label in one]
        packed = Labels(int_array(flat), int_array(list(map(len, labels))))
    rows = pack_setwise(prompts, anchors_of([], prompts, ANCHOR), packed, VOCAB, CONFIG)
    values = np.array(answer(rows), np.float32)
    assert len(values) == rows.num_values
    flat = flat_scores(values, rows.read, apply_softmax=softmax, temperature=2.0)
    scores = scores_by_item(label_rows(flat, rows.read), rows)
    for prompt, own, matrix in zip(prompts, labels, scores, strict=True):
        places = [place for place, token in enumerate(prompt) if token == ANCHOR]
        assert len(matrix) == len(places)
        for place, found in zip(places, matrix, strict=True):
            logs = np.array([value(prompt[: place + 1], label) for label in own])
            wanted = np.exp(logs)
            if softmax:
                wanted = np.exp(logs / 2) / np.exp(logs / 2).sum()
            assert found == pytest.approx(wanted.tolist(), abs=1e-6)


def test_rows_share_what_comes_before_their_anchors() -> None:
    prompts = [[1, 1, 2, 3], [1, 1, 2, 4, 2]]
    rows = pack_setwise(
        prompts, anchors_of([], prompts, ANCHOR), Labels(int_array([5])), VOCAB, CONFIG
    )
    assert (rows.prefix_len, rows.read_lens.tolist()) == (2, [2, 3])
    assert rows.read.lens.tolist() == [1, 0, 1, 0, 1]


def test_embeddings_may_stand_at_anchors_and_ids_are_checked() -> None:
    labels, table = Labels(int_array([5])), np.ones((1, 2), np.float32)
    rows = pack_setwise([[1, -1], [-1, 3]], [[1], [0]], labels, VOCAB, CONFIG, table)
    assert rows.tokens.tolist() == [1, -1, -1, 3]
    assert rows.read.lens.tolist() == [1, 1, 0]
    assert rows.overrides is table
    with pytest.raises(RequestError, match="id -1"):
        pack_setwise([[1, -1]], [[1]], labels, VOCAB, CONFIG)
    with pytest.raises(RequestError, match="id 99"):
        pack_setwise([[2], [2, 99]], [[0], [0]], labels, VOCAB, CONFIG)


def test_anchors_stand_in_every_item_and_not_in_the_query() -> None:
    assert anchors_of([1], [[1, 7, 2, 7], [1, 7]], 7) == [[1, 3], [1]]
    for query, prompts in (([7], [[7, 7]]), ([1], [[1, 7], [1, 2]])):
        with pytest.raises(StockPathTaken, match="unusual_input"):
            anchors_of(query, prompts, 7)
