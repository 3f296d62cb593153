from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.client.answers import Scores
from sglang_prefill_ext.client.requests import Plan, plan_classify, plan_embed, plan_score
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.score.score_body import stock_score_body
from tests.unit.client.stand_in import Json, answer, value_of


def scoring(query: Any, items: Any, labels: Any = (1, 2), max_items: int = 1000) -> Plan[Scores]:
    return plan_score(
        query,
        items,
        labels,
        max_items=max_items,
        apply_softmax=True,
        item_first=False,
        temperature=1,
        return_token_logprobs=True,
    )


def bodies(plan: Plan[Any]) -> list[Json]:
    return [json.loads(request.content(arrays=False)) for request in plan.requests]


def joined(plan: Plan[Any]) -> Any:
    answers = [answer(r.path, json.loads(r.content(arrays=False))) for r in plan.requests]
    read = [r.read(a, r.items) for r, a in zip(plan.requests, answers, strict=True)]
    return plan.join(read)


def test_a_scoring_body_is_the_documented_one() -> None:
    (body,) = bodies(scoring("q", ["a", "b"]))
    assert body == {
        "query": "q",
        "items": ["a", "b"],
        "label_token_ids": [1, 2],
        "apply_softmax": True,
        "item_first": False,
        "temperature": 1.0,
        "return_token_logprobs": True,
    }


def test_numpy_arrays_become_lists() -> None:
    items: list[Any] = [np.array([1, 2], np.int32), np.array([3], np.uint64), []]
    (body,) = bodies(scoring(np.array([7]), items, np.array([4, 5])))
    assert (body["query"], body["items"]) == ([7], [[1, 2], [3], []])
    assert body["label_token_ids"] == [4, 5]
    (body,) = bodies(scoring([], np.arange(6).reshape(2, 3)))
    assert (body["query"], body["items"]) == ([], [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        (lambda text: scoring(text, ["a"]), "query"),
        (lambda text: scoring("a", ["b", text]), "items[1]"),
        (lambda text: plan_embed([text], max_items=9, dimensions=None), "prompts[0]"),
        (lambda text: plan_classify(["a", text], max_items=9), "prompts[1]"),
        (lambda text: plan_classify(["a"], max_items=9, adapter=text), "adapter"),
    ],
)
def test_texts_with_lone_surrogates_are_refused(
    plan: Callable[[str], Plan[Any]], field: str
) -> None:
    with pytest.raises(RequestError) as refused:
        plan("a\ud800")
    assert str(refused.value).startswith(f"{field}: 'a\\ud800' has lone surrogates")


@given(st.lists(st.text(), min_size=1, max_size=30), st.integers(1, 12))
def test_parts_are_small_and_keep_the_order(texts: list[str], max_items: int) -> None:
    plan = scoring("q", texts, max_items=max_items)
    assert [text for body in bodies(plan) for text in body["items"]] == texts
    assert max(request.items for request in plan.requests) <= max_items
    assert len(plan.requests) == -(-len(texts) // max_items)
    scores = joined(plan)
    np.testing.assert_array_equal(scores.scores[:, 0], [value_of(text) for text in texts])
    assert scores.token_logprobs.shape == scores.scores.shape
    assert scores.prompt_tokens == 10 * len(texts)


@given(st.lists(st.lists(st.integers(0, 9)), min_size=1, max_size=30), st.integers(1, 12))
def test_vectors_of_parts_keep_the_order(prompts: list[list[int]], max_items: int) -> None:
    values = np.array([value_of(prompt) for prompt in prompts], np.float32)
    embeddings = joined(plan_embed(prompts, max_items=max_items, dimensions=None))
    classes = joined(plan_classify(prompts, max_items=max_items))
    np.testing.assert_array_equal(embeddings[:, 0], values)
    np.testing.assert_array_equal(classes[:, 0], values)
    assert (embeddings.shape[1], classes.shape[1]) == (2, 3)


def test_labels_of_each_item_go_with_their_item() -> None:
    parts = bodies(scoring("q", ["a", "b", "c"], [[1, 2], [3, 4], [5, 6]], max_items=2))
    assert [part["label_token_ids"] for part in parts] == [[[1, 2], [3, 4]], [[5, 6]]]


def test_without_labels_the_classes_are_asked_for() -> None:
    assert bodies(scoring("q", ["a"], None))[0]["label_token_ids"] is None


def test_embedding_bodies() -> None:
    (body,) = bodies(plan_embed(["a"], max_items=9, dimensions=16))
    assert body == {"input": ["a"], "encoding_format": "base64", "dimensions": 16}


def test_every_part_names_the_adapter() -> None:
    for plan in (
        plan_embed(["a", "b"], max_items=1, dimensions=None, adapter="tuned"),
        plan_classify(["a", "b"], max_items=1, adapter="tuned"),
    ):
        assert [body["lora_path"] for body in bodies(plan)] == ["tuned", "tuned"]


def test_classification_says_what_its_prompts_are() -> None:
    assert bodies(plan_classify(["a"], max_items=9)) == [{"text": ["a"]}]
    assert bodies(plan_classify([[1]], max_items=9)) == [{"input_ids": [[1]]}]


@pytest.mark.parametrize(
    ("query", "items", "labels", "words"),
    [
        ("q", "one text", [1], r"items: 'one text' is not a list\. Put one prompt into a list"),
        ("q", 5, [1], "items: 5 is not a list"),
        ("q", {"a": 1}, [1], "items: .* is not a list"),
        ("q", [], [1], "items: the list is empty"),
        ("q", ["a", [1]], [1], "items: both texts and token ids"),
        ("q", [[1]], [1], "query and items: both texts and token ids"),
        ([1], ["a"], [1], "query and items: both texts and token ids"),
        ("q", [1, 2], [1], r"items\[0\]: 1 is not a list of token ids\."),
        ("q", [[1], [1.5]], [1], r"items\[1\]: \[1.5\] is not a list of token ids"),
        ("q", [[2**70]], [1], r"items\[0\]: "),
        ("q", [[2**31]], [1], r"items\[0\]: \[2147483648\] does not fit into 32 bits"),
        ("q", [[-(2**31) - 1]], [1], r"items\[0\]: .* 32 bits"),
        ("q", [None], [1], r"items\[0\]: None"),
        (None, ["a"], [1], "query: None is not"),
        ("q", ["a"], ["1"], "label_token_ids: .* or equally long lists of them"),
        ("q", ["a", "b"], [[1], [1, 2]], "label_token_ids: .* equally long"),
        ("q", ["a", "b"], [[1]], "label_token_ids: 1 lists for 2 items"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(
    query: Any, items: Any, labels: Any, words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        scoring(query, items, labels)


def test_what_is_asked_is_said() -> None:
    (one,), (two,) = scoring("q", ["a"]).requests, scoring("q", ["a", "b"]).requests
    assert one.asked == "/v1/score with 1 item"
    assert two.asked == "/v1/score with 2 items"


@given(st.lists(st.integers(0, 2**31 - 1)), st.lists(st.lists(st.integers(0, 9)), min_size=1))
def test_token_ids_as_arrays_are_what_the_server_reads(query: list[int], items: Any) -> None:
    (request,) = scoring(query, items).requests
    forms, lists = (request.content(arrays=arrays) for arrays in (True, False))
    assert json.loads(stock_score_body(forms, PrefillOnlyConfig())[0]) == json.loads(lists)
    assert json.loads(forms)["items"].keys() == {"values", "counts"}


@pytest.mark.parametrize(
    "plan",
    [
        scoring("q", ["a"]),
        plan_embed([[1, 2]], max_items=9, dimensions=None),
        plan_classify([[1, 2]], max_items=9),
    ],
    ids=["texts", "embeddings", "classes"],
)
def test_what_has_no_form_as_arrays_is_sent_as_ever(plan: Plan[Any]) -> None:
    (request,) = plan.requests
    assert request.content(arrays=True) == request.content(arrays=False)
