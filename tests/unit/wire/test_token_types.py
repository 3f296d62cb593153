"""Types of tokens in their ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.wire.token_types import typed_ids


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 3))))
def test_ids_and_types_come_back(tokens: list[tuple[int, int]]) -> None:
    typed = typed_ids([each for each, _ in tokens], [kind for _, kind in tokens], 100)
    assert [(each % 100, each // 100) for each in typed] == tokens


def test_tokens_of_type_0_keep_their_ids() -> None:
    assert typed_ids([5, 7], [0, 0], 100) == [5, 7]
