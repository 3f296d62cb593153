from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_prefill_ext.modelmaker.tokenizer import train_tokenizer
from sglang_prefill_ext.texts import sample_texts
from sglang_prefill_ext.texts.frame import frame_of
from sglang_prefill_ext.texts.libraries import TokenizerCopy, flat
from sglang_prefill_ext.texts.proof import boundaries_of, unproven
from sglang_prefill_ext.texts.splice import Splice
from sglang_prefill_ext.wire.arrays import FlatRows
from tests.unit.texts.made import PROVEN, json_of

_SEVERE = st.sampled_from(
    [
        *sample_texts._WORDS,
        *sample_texts._SPACES,
        *sample_texts._RARE_SPACES,
        *sample_texts._MARKS,
        "<|end|>",
        "<s>",
        "\u0338",
    ]
)
TEXT = st.lists(st.one_of(_SEVERE, st.text(max_size=4), st.just(" ")), max_size=7).map("".join)


@cache
def loaded(source: str) -> tuple[TokenizerCopy, Splice]:
    config = json.loads(source)
    assert unproven(config) == ""
    frame = frame_of(config["post_processor"])
    assert frame is not None
    return TokenizerCopy(source), Splice(boundaries_of(config), frame)


def check(source: str, shared: str, items: list[str]) -> int:
    """Compare with encoding whole prompts; return how many ways could be spliced."""
    copy, splice = loaded(source)
    cut = 0
    for item_first in (False, True):
        spliced = splice.encode(copy, shared, items, item_first=item_first)
        if spliced is not None:
            whole = [item + shared if item_first else shared + item for item in items]
            assert spliced.whole(item_first=item_first).tolist() == copy.encode(whole)
            cut += 1
    return cut


@pytest.mark.parametrize("kind", PROVEN)
@settings(max_examples=150, deadline=None)
@given(shared=TEXT, items=st.lists(TEXT, min_size=2, max_size=4))
def test_spliced_prompts_have_the_ids_of_whole_ones(
    kind: str, shared: str, items: list[str]
) -> None:
    source = json_of(kind)
    check(source, shared, items)
    assert check(source, f"{shared} One question", items) == 2


def test_the_tokenizer_of_made_models_is_spliced() -> None:
    source = train_tokenizer(2000, 512).backend_tokenizer.to_str()
    for shared, items in sample_texts.splice_cases(["<|im_start|>"]):
        check(source, shared, items)
    assert check(source, "One question: ", ["yes", "no"]) == 2


class Counting(TokenizerCopy):
    """Records what it encodes."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.seen: list[list[str]] = []

    def rows(self, texts: list[str]) -> FlatRows:  # type: ignore[override]
        self.seen.append(list(texts))
        return super().rows(texts)


def test_the_shared_text_is_encoded_once() -> None:
    source = json_of("gpt2")
    counting, (_, splice) = Counting(source), loaded(source)
    splice.encode(counting, "Which of these? Answer:", ["yes", " no"], item_first=False)
    splice.encode(counting, "? Which of these?", ["yes", "no"], item_first=True)
    splice.encode(counting, "", ["Is it so? yes", "Is it so? no"], item_first=False)
    assert counting.seen == [
        ["Which of these? Answer", ":yes", ": no"],
        [" Which of these?", "yes?", "no?"],
        ["Is it so?", " yes", " no"],
    ]


@pytest.mark.parametrize(
    ("shared", "items", "item_first"),
    [("a b c", ["one"], False), ("abc", ["x", "y"], False), ("", ["x", "y"], True)],
)
def test_nothing_is_cut_where_nothing_is_gained(
    shared: str, items: list[str], item_first: bool
) -> None:
    copy, splice = loaded(json_of("gpt2"))
    assert splice.encode(copy, shared, items, item_first=item_first) is None


def test_special_tokens_stand_around_the_whole_prompt() -> None:
    copy, splice = loaded(json_of("wordpiece"))
    behind = splice.encode(copy, "the word of", ["a", "b"], item_first=False)
    before = splice.encode(copy, "the word of", ["a", "b"], item_first=True)
    assert behind is not None
    assert before is not None
    assert behind.shared[0] == 1
    assert [row[-1] for row in behind.rest.tolist()] == [2, 2]
    assert before.shared[-1] == 2
    assert [row[0] for row in before.rest.tolist()] == [1, 1]


def test_rows_of_ids_are_flat_and_lists() -> None:
    rows = flat([[1, 2], [], [3]])
    np.testing.assert_array_equal(rows.values, [1, 2, 3])
    np.testing.assert_array_equal(rows.counts, [2, 0, 1])
    assert rows.tolist() == [[1, 2], [], [3]]
    assert flat([]).tolist() == []
