from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from sglang_prefill_ext.frontend.score.score_body import ScoreBody, fields_of
from sglang_prefill_ext.frontend.score.score_call import ScoreCall

REQUEST = object()
LABELS = {"label_token_ids": [4, 5]}


def read(**fields: Any) -> tuple[ScoreCall, str] | None:
    body = ScoreBody.of(json.dumps(fields).encode())
    call = body.call(REQUEST)
    return None if call is None else (call, body.model)


@pytest.mark.parametrize(
    "fields",
    [
        {"query": "q", "items": ["a", "ÿ 東京"]} | LABELS,
        {"query": None, "items": "a", "apply_softmax": True, "temperature": 2} | LABELS,
        {"query": [7], "items": [[5, 0], [7]], "label_token_ids": [[1], [2, 3]]},
        {"items": [[5]], "item_first": True, "return_token_logprobs": True} | LABELS,
        {"query": "q", "items": ["a", [5]]} | LABELS,  # eligibility is judged elsewhere
    ],
    ids=str,
)
def test_plain_requests_are_read(fields: dict[str, Any]) -> None:
    assert read(**fields) == (ScoreCall(**fields, request=REQUEST), "default")
    assert read(**fields, model="m") == (ScoreCall(**fields, request=REQUEST), "m")


@pytest.mark.parametrize(
    "fields",
    [
        {"query": "q", "items": ["a"]},
        {"query": "q", "items": ["a"], "label_token_ids": None},
        {"query": "q", "items": ["a"], "label_token_ids": ["4"]},
        {"query": "q"} | LABELS,
        {"query": ["q"], "items": ["a"]} | LABELS,
        {"query": "q", "items": [1]} | LABELS,
        {"query": "q", "items": [["a"]]} | LABELS,
        {"query": "q", "items": [[True]]} | LABELS,
        {"query": [2**63], "items": [[1]]} | LABELS,
        {"query": [1], "items": [[2**63]]} | LABELS,
        {"query": "q", "items": ["a"], "label_token_ids": [2**63]},
        {"query": "q", "items": ["a"], "temperature": "1"} | LABELS,
        {"query": "q", "items": ["a"], "apply_softmax": "yes"} | LABELS,
        {"query": "q", "items": ["a"], "return_pooled_hidden_states": False} | LABELS,
        {"query": "q", "items": ["a"], "score_extraction_token": "<s>"} | LABELS,
        {"query": "q", "items": ["a"], "model": None} | LABELS,
        {"query": "q", "items": ["a"], "unheard_of": 1} | LABELS,
    ],
    ids=str,
)
def test_everything_else_is_left_to_sglang(fields: dict[str, Any]) -> None:
    assert read(**fields) is None


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"query": "\xff"}', b"\x00" * 8, b"null"])
def test_what_is_no_json_object_is_left_to_sglang(body: bytes) -> None:
    assert ScoreBody.of(body).call(REQUEST) is None


ONE_TWO = base64.b64encode(np.array([1, 2], "<i4").tobytes()).decode()


@pytest.mark.parametrize("query", [{"values": ONE_TWO}, None])
def test_arrays_are_read_without_lists(query: dict[str, str] | None) -> None:
    found = read(query=query, items={"values": ONE_TWO, "counts": "AgAAAA=="}, **LABELS)
    assert found is not None
    call, _ = found
    assert call.query.tolist() == ([1, 2] if query else [])
    assert [row.tolist() for row in call.items.rows()] == [[1, 2]]
    assert call.num_items == 1
    assert not call.has_texts


@pytest.mark.parametrize(
    "fields",
    [
        {"query": [1], "items": {"values": ONE_TWO, "counts": "AgAAAA=="}},
        {"query": "q", "items": {"values": ONE_TWO, "counts": "AgAAAA=="}},
        {"query": {"values": ONE_TWO}, "items": [[1]]},
        {"items": {"values": ONE_TWO, "counts": "AwAAAA=="}},
        {"items": {"values": "?", "counts": "AwAAAA=="}},
        {"items": {"values": ONE_TWO}},
    ],
    ids=str,
)
def test_wrong_arrays_are_refused_elsewhere(fields: dict[str, Any]) -> None:
    assert read(**fields, **LABELS) is None


def test_the_fields_of_a_marked_body() -> None:
    assert fields_of(b'{"a": {"mark": 1}, "b": [2], "a": 3}', b"mark") == {"a": 3, "b": [2]}
    assert fields_of(b'{"a": 1}', b"mark") == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'"mark"',
        b'["mark"]',
        b'{"mark": ',
        b'{"mark": "\xff"}',
        b'{"mark": "\\ud800"}',
        b'{"mark": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"mark": ' * 50_000 + b"1" + b"}" * 50_000,
    ],
    ids=["nothing", "text", "list", "cut-off", "utf-8", "surrogate", "deep-list", "deep-object"],
)
def test_what_cannot_be_read_has_no_fields(body: bytes) -> None:
    assert fields_of(body, b"mark") == {}
