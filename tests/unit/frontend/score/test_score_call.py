from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import TooManyItemsError
from sglang_prefill_ext.frontend.score.score_call import (
    ScoreCall,
    ineligible_reason,
    pack_labels,
    prompts_of,
)
from sglang_prefill_ext.wire.arrays import FlatRows, int_array

TEXT_CALL: dict[str, Any] = {"query": "q", "items": ["a", "b"], "label_token_ids": [1]}
ID_CALL: dict[str, Any] = {"query": [1], "items": [[2], []], "label_token_ids": [1]}


@pytest.mark.parametrize(
    "arguments",
    [
        TEXT_CALL,
        ID_CALL,
        TEXT_CALL | {"query": None},
        ID_CALL | {"query": None},
        TEXT_CALL | {"items": "a"},
        TEXT_CALL | {"item_first": True, "return_token_logprobs": True},
        TEXT_CALL | {"apply_softmax": True, "temperature": 0.5},
        TEXT_CALL | {"apply_softmax": True, "temperature": 3},
        TEXT_CALL | {"label_token_ids": None},
        TEXT_CALL | {"score_extraction_token_id": 0},
        TEXT_CALL | {"embed_override_token_id": 5},
        TEXT_CALL | {"embed_override_token_id": 5, "query_embed_overrides": []},
        TEXT_CALL | {"embed_override_token_id": 5, "item_embed_overrides": [None, []]},
        ID_CALL | {"embed_override_token_id": 5, "stacked_query_item_embed_overrides": [0, 0]},
    ],
    ids=repr,
)
def test_plain_calls_are_packed(arguments: dict[str, Any]) -> None:
    assert ineligible_reason(ScoreCall(**arguments)) is None


@pytest.mark.parametrize(
    ("argument", "value", "reason"),
    [
        ("query_embed_overrides", [], "unusual_input"),
        ("item_embed_overrides", [], "unusual_input"),
        ("stacked_query_item_embed_overrides", [], "unusual_input"),
        ("score_extraction_token_id", "0", "unusual_input"),
        ("image_data", [], "multimodal"),
        ("return_pooled_hidden_states", True, "pooled_hidden_states"),
        ("items", None, "no_items"),
        ("items", [], "no_items"),
        ("items", "", "no_items"),
        ("items", ("a",), "unusual_input"),
        ("items", ["a", [1]], "unusual_input"),
        ("items", ["a", None], "unusual_input"),
        ("items", [[1]], "unusual_input"),
        ("items", [1, 2], "unusual_input"),
        ("query", [1], "unusual_input"),
        ("query", 1, "unusual_input"),
        ("temperature", 0.5, "unusual_input"),
    ],
)
def test_other_calls_name_their_reason(argument: str, value: Any, reason: str) -> None:
    assert ineligible_reason(ScoreCall(**TEXT_CALL | {argument: value})) == reason


@pytest.mark.parametrize(
    "fields",
    [
        {"embed_override_token_id": None},
        {"embed_override_token_id": "5"},
        {"item_first": True},
        {"item_embed_overrides": [None]},
        {"item_embed_overrides": (None, None)},
        {"query_embed_overrides": None, "stacked_query_item_embed_overrides": [None]},
        {"stacked_query_item_embed_overrides": [None, None]},
    ],
)
def test_embeddings_that_sglang_refuses_are_left_to_it(fields: dict[str, Any]) -> None:
    plain = ID_CALL | {"embed_override_token_id": 5, "query_embed_overrides": []}
    assert ineligible_reason(ScoreCall(**plain)) is None
    assert ineligible_reason(ScoreCall(**plain | fields)) == "unusual_input"
    stacked = {"embed_override_token_id": 5, "stacked_query_item_embed_overrides": [None, None]}
    assert ineligible_reason(ScoreCall(**TEXT_CALL | stacked)) == "unusual_input"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"return_token_logprobs": True}, None),
        ({"embed_override_token_id": 5, "query_embed_overrides": []}, None),
        ({"item_first": True}, "unusual_input"),
        ({"items": FlatRows(int_array([1]), int_array([1]))}, "unusual_input"),
    ],
)
def test_setwise_calls_are_packed_unless_items_come_first_or_in_arrays(
    fields: dict[str, Any], reason: str | None
) -> None:
    setwise = ScoreCall(**ID_CALL | {"score_extraction_token_id": 3} | fields)
    assert ineligible_reason(setwise) == reason


@pytest.mark.parametrize("query", ["q", 1, (1,)])
def test_token_id_items_want_a_token_id_query(query: Any) -> None:
    assert ineligible_reason(ScoreCall(**ID_CALL | {"query": query})) == "unusual_input"


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf"), "1", None])
def test_temperatures_that_sglang_refuses_are_left_to_it(temperature: Any) -> None:
    call = ScoreCall(**TEXT_CALL | {"apply_softmax": True, "temperature": temperature})
    assert ineligible_reason(call) == "unusual_input"


@pytest.mark.parametrize(
    ("items", "expected"), [("ab", 1), (["a"], 1), ([[1], [2]], 2), ([], 0), (None, 0), (("a",), 0)]
)
def test_number_of_items(items: Any, expected: int) -> None:
    assert ScoreCall(items=items).num_items == expected


def test_items_and_label_lists_are_limited() -> None:
    config = PrefillOnlyConfig(max_items=2)
    for labels in ([[5], [6]], [5, 6, 7], [], None, "abc", [5, [6], [7]]):
        ScoreCall(items=["a", "b"], label_token_ids=labels).check_counts(config)
    with pytest.raises(TooManyItemsError, match="items: 3 items exceed the limit of 2"):
        ScoreCall(items=["a"] * 3).check_counts(config)
    with pytest.raises(TooManyItemsError, match="label_token_ids: 3 lists exceed the limit of 2"):
        ScoreCall(items=["a"], label_token_ids=[[5], [6], [7]]).check_counts(config)


@pytest.mark.parametrize(
    ("query", "items", "expected"),
    [
        ("q", ["a", "b"], ("q", ["a", "b"])),
        ("q", "a", ("q", ["a"])),
        (None, "a", ("", ["a"])),
        (None, ["a"], ("", ["a"])),
        (None, [[1], []], ([], [[1], []])),
        ([3], [[1]], ([3], [[1]])),
    ],
)
def test_prompts(query: Any, items: Any, expected: tuple[Any, list[Any]]) -> None:
    assert prompts_of(ScoreCall(query=query, items=items)) == expected


def test_binding_takes_positions_and_keywords() -> None:
    call = ScoreCall("q", ["a"], [1], item_first=True, temperature=2.0)
    assert call == ScoreCall("q", ["a"], [1], item_first=True, temperature=2.0)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {"unknown": 1}), (("q",), {"query": "q"}), ((None,) * 16, {})],
    ids=["unknown keyword", "given twice", "too many"],
)
def test_arguments_that_do_not_fit_are_a_type_error(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        ScoreCall(*args, **kwargs)


VOCAB = 30
LABELS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4, unique=True)


@given(LABELS, st.integers(1, 5))
def test_one_list_is_shared_by_all_items(labels: list[int], num_items: int) -> None:
    packed = pack_labels(labels, num_items, VOCAB)
    assert packed is not None
    assert packed.ids.tolist() == labels
    assert packed.lens.tolist() == []


@given(st.lists(LABELS, min_size=1, max_size=5))
def test_a_list_an_item_keeps_its_order(labels: list[list[int]]) -> None:
    packed = pack_labels(labels, len(labels), VOCAB)
    assert packed is not None
    assert packed.ids.tolist() == list(chain.from_iterable(labels))
    assert packed.lens.tolist() == [len(one) for one in labels]


def test_an_array_has_one_row_for_all_items_or_one_an_item() -> None:
    rows = FlatRows(int_array([1, 2, 1]), int_array([2, 1]))
    packed = pack_labels(rows, 2, VOCAB)
    assert packed is not None
    assert (packed.ids.tolist(), packed.lens.tolist()) == ([1, 2, 1], [2, 1])
    assert [pack_labels(rows, num_items, VOCAB) for num_items in (1, 3)] == [None, None]
    assert pack_labels(FlatRows(int_array([1, 2]), int_array([2, 0])), 2, VOCAB) is None


@pytest.mark.parametrize(
    "labels",
    [
        None,
        [],
        (1, 2),
        "12",
        7,
        [-1],
        [VOCAB],
        [2**70],
        [1, 1],
        [1.0],
        [True],
        ["1"],
        [None],
        [1, [2]],
        [[1], 2],
        [[1]],
        [[1], [2], [3]],
        [[1], []],
        [[1], None],
        [[1], (2,)],
        [[1], [2, 2]],
        [[1], [VOCAB]],
        [[1], [False]],
        [[[1]], [[2]]],
    ],
    ids=repr,
)
def test_everything_unusual_is_left_to_sglang(labels: Any) -> None:
    assert pack_labels(labels, 2, VOCAB) is None
