from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.options import options_of as options_by_http
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.questions import (
    next_items,
    options_of,
    prompts_of,
    score_call,
    stock_arguments,
    without_items,
)
from sglang_prefill_ext.wire.arrays import FlatRows
from tests.unit.grpc_frontend.calls import id_request, int32, int32_rows, text_request

ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6)


@given(ids, st.lists(ids, min_size=1, max_size=4), st.lists(ids, max_size=4), st.booleans())
def test_ids_come_through_the_message_unchanged(
    query: list[int], items: list[list[int]], labels: list[list[int]], first: bool
) -> None:
    sent = id_request(query, items)
    sent.labels.CopyFrom(int32_rows(labels))
    sent.item_first = sent.apply_softmax = sent.return_token_logprobs = first
    sent.temperature = 0.5
    arguments = stock_arguments(score_call(pb.ScoreRequest.FromString(sent.SerializeToString())))
    known = labels[0] if len(labels) == 1 else labels or None
    assert arguments.pop("label_token_ids", None) == known
    assert arguments.pop("return_pooled_hidden_states") is False
    assert arguments == {
        "query": query,
        "items": items,
        "apply_softmax": first,
        "temperature": 0.5,
        "item_first": first,
        "return_token_logprobs": first,
    }


def test_texts_and_what_is_left_out() -> None:
    call = score_call(text_request("q", "a", "漢"))
    assert (call.query, call.items, call.temperature) == ("q", ["a", "漢"], 1.0)
    assert stock_arguments(call)["label_token_ids"] == [4]
    alone = stock_arguments(score_call(pb.ScoreRequest(item_ids=int32_rows([[1]]))))
    assert alone["query"] == []
    assert "label_token_ids" not in alone


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ScoreRequest(query_text="q"), "items"),
        (pb.ScoreRequest(item_ids=pb.Int32Rows()), "items"),
        (pb.ScoreRequest(query_text="q", item_ids=int32_rows([[1]])), "query"),
        (pb.ScoreRequest(query_ids=int32([1]), item_texts=pb.Texts(texts=["a"])), "query"),
        (pb.ScoreRequest(query_ids=b"123", item_ids=int32_rows([[1]])), "query_ids"),
        (pb.ScoreRequest(item_ids=pb.Int32Rows(values=b"1")), "item_ids.values"),
        (pb.ScoreRequest(item_ids=pb.Int32Rows(values=int32([1]))), "item_ids.counts"),
        (
            pb.ScoreRequest(item_ids=int32_rows([[1]]), labels=pb.Int32Rows(values=b"1")),
            "labels.values",
        ),
    ],
)
def test_broken_requests_are_refused_by_field(request_: pb.ScoreRequest, field: str) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        score_call(request_)
    assert caught.value.field == field


def test_later_messages_of_a_stream_hold_items_and_nothing_else() -> None:
    first = id_request([1, 2], [[3]])
    whole = next_items(without_items(first), pb.ScoreRequest(item_ids=int32_rows([[7, 8], [9]])))
    assert whole == id_request([1, 2], [[7, 8], [9]])
    assert first == id_request([1, 2], [[3]])
    texts = next_items(
        without_items(text_request("q", "a")), pb.ScoreRequest(item_texts=pb.Texts(texts=["b"]))
    )
    assert texts == text_request("q", "b")
    with pytest.raises(RequestError, match="only the first message") as caught:
        next_items(without_items(first), id_request([], [[1]]))
    assert caught.value.field == "labels"


def test_what_a_stream_keeps_of_its_first_message_has_no_items() -> None:
    first = id_request([1, 2], [[3]] * 10_000)
    first.embed_overrides.CopyFrom(pb.EmbedOverrides(token_id=3, query=b"1234", items=bytes(9999)))
    shared = without_items(first)
    assert (shared.query_ids, shared.embed_overrides.query) == (int32([1, 2]), b"1234")
    assert shared.ByteSize() < 100


def test_prompts_are_texts_or_ids() -> None:
    assert prompts_of(pb.Prompts(texts=pb.Texts(texts=["a", ""]))) == ["a", ""]
    found = prompts_of(pb.Prompts(ids=int32_rows([[1, 2], [3]])))
    assert isinstance(found, FlatRows)
    assert [row.tolist() for row in found.rows()] == [[1, 2], [3]]
    for empty in (pb.Prompts(), pb.Prompts(texts=pb.Texts()), pb.Prompts(ids=pb.Int32Rows())):
        with pytest.raises(RequestError, match="there are none"):
            prompts_of(empty)


@given(st.integers(-(2**31) + 1, 2**31 - 1), st.booleans(), st.booleans())
def test_options_say_the_same_in_http_headers(priority: int, keep: bool, stock: bool) -> None:
    options = options_of(pb.Options(priority=priority, keep_prefix=keep, stock=stock), None)
    headers = options.headers()
    assert (headers.get("x-prefill-only") == "off") == stock == options.stock
    assert options_by_http(headers, now_ms=0) == options.scheduling


def test_the_deadline_is_that_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    options = options_of(pb.Options(), 20.0)
    assert options.scheduling.deadline_ms == 1_020_000
    assert options_by_http(options.headers(), now_ms=1_000_000) == options.scheduling
    assert options_of(pb.Options(), -3.0).headers()["x-prefill-only-timeout-ms"] == "1"
    assert options_of(pb.Options(), 1e12).headers()["x-prefill-only-timeout-ms"] == str(2**31 - 1)
