from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.frontend.token import first_tokens
from sglang_prefill_ext.frontend.token.first_tokens import FirstTokens

BIASES = st.dictionaries(st.integers(0, 39), st.floats(-5, 5), max_size=4)


@given(st.lists(st.booleans(), min_size=40, max_size=40), BIASES)
def test_the_other_tokens_are_forbidden_and_biases_are_kept(
    is_allowed: list[bool], biases: dict[int, float]
) -> None:
    first = FirstTokens.of(np.array(is_allowed))
    if first is None:
        assert not any(is_allowed)
        return
    records, of_others = first.restrict(biases)
    of_some = dict(records.tolist())
    assert len(of_some) == len(records)
    for token, allowed in enumerate(is_allowed):
        wanted = biases.get(token, 0.0) if allowed else -math.inf
        assert of_some.get(token, of_others) == np.float32(wanted)
    assert len(first.listed) <= 20


def test_long_lists_are_left_to_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_tokens, "MOST_LISTED", 3)
    for number, expected in ((3, (True, (0, 1, 2))), (4, None), (6, None), (7, (False, (7, 8, 9)))):
        found = FirstTokens.of(np.arange(10) < number)
        assert (found and (found.allowed, tuple(found.listed.tolist()))) == expected


def test_all_tokens_may_be_allowed() -> None:
    found = FirstTokens.of(np.full(10, fill_value=True))
    assert found is not None
    assert (found.listed.tolist(), found.allowed) == ([], False)
