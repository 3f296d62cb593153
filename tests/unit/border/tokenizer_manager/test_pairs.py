from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.border.tokenizer_manager.embed_request import text_pairs

pairs = st.lists(st.tuples(st.text(), st.text()))


@given(pairs)
def test_lists_and_tuples_are_pairs(wanted: list[tuple[str, str]]) -> None:
    assert text_pairs(wanted) == wanted
    assert text_pairs([list(pair) for pair in wanted]) == wanted


@pytest.mark.parametrize(
    "text",
    [
        None,
        "query",
        "ab",
        ["query", "document"],
        ["ab", "cd"],
        [],
        [["query"]],
        [["query", "document", "more"]],
        [["query", 5]],
        [["query", "document"], "document"],
        (("query", "document"),),
    ],
)
def test_anything_else_is_left_to_sglang(text: Any) -> None:
    assert text_pairs(text) == []
