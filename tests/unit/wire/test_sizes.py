from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError, TooManyItemsError
from sglang_prefill_ext.frontend.pack import pack_token_ids
from sglang_prefill_ext.wire import sizes
from sglang_prefill_ext.wire.flat import FlatRows, pack_flat
from sglang_prefill_ext.wire.packed import NO_INTS, int_array
from sglang_prefill_ext.wire.sizes import (
    PromptLengths,
    check_count,
    check_memory,
    check_repeated,
)

MIB = 1 << 20
LABELS = int_array([3]), NO_INTS
ROWS = st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=5)


@given(st.lists(st.integers(0, 9), max_size=5), ROWS)
def test_lengths_are_those_of_the_prompts(query: list[int], items: list[list[int]]) -> None:
    flat = FlatRows(int_array([x for item in items for x in item]), int_array([*map(len, items)]))
    lengths = PromptLengths.of(query, items)
    assert lengths == PromptLengths.of(int_array(query), flat)
    prompts = [query + item for item in items]
    assert lengths.longest_prompt == max(map(len, prompts))
    assert lengths.packed(repeats_query=True) == sum(map(len, prompts))
    assert lengths.packed(repeats_query=False) == len(query) + sum(map(len, items))


def test_as_many_as_allowed_and_no_more() -> None:
    config = PrefillOnlyConfig(max_items=3)
    check_count(3, config)
    with pytest.raises(TooManyItemsError, match=r"prompts: 4 rows .* limit of 3") as caught:
        check_count(4, config, field="prompts", noun="rows")
    assert caught.value.field == "prompts"


@pytest.mark.parametrize(
    "most", [{"tokens": MIB // 2}, {"numbers": MIB // 16}, {"tokens": MIB // 4, "numbers": 2**15}]
)
def test_as_much_memory_as_allowed_and_no_more(most: dict[str, int]) -> None:
    config = PrefillOnlyConfig(max_queued_mib=2)
    check_memory(config, **most)
    for name in most:
        with pytest.raises(RequestError, match=r"limit of 2.*--prefill-only-max-queued-mib"):
            check_memory(config, **(most | {name: most[name] + 1}))


def test_a_text_is_repeated_so_often_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MOST_REPEATED_CHARACTERS", 20)
    check_repeated("a" * 21, ["alone"])
    check_repeated("a" * 10, ["b"] * 3)
    with pytest.raises(RequestError, match="its 11 characters would be repeated for 3 items"):
        check_repeated("a" * 11, ["b"] * 3)


@pytest.mark.parametrize("first_token", [0, 7], ids=["items differ", "items begin alike"])
@pytest.mark.parametrize("as_lists", [False, True])
def test_a_query_behind_items_takes_few_bytes_a_pair(first_token: int, as_lists: bool) -> None:
    count, length = 1000, 1000
    query: Any = np.arange(length, dtype=np.int32)
    rows = np.arange(2 * count, dtype=np.int32).reshape(count, 2)
    if first_token:
        rows[:, 0] = first_token
    items: Any = FlatRows(rows.ravel(), np.full(count, 2, dtype=np.int32))
    pack: Any = pack_flat
    if as_lists:
        query, items, pack = query.tolist(), rows.tolist(), pack_token_ids
    tracemalloc.start()
    try:
        packed = pack(query, items, True, LABELS, 2 * count)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert packed.num_prompt_tokens == count * (length + 2)
    # The rows; and the packed tokens, where what all begin with is taken out of these.
    assert peak < (13 if first_token else 5) * count * length
