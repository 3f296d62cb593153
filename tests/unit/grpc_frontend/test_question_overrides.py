from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from sglang_prefill_ext.client.arrays import EmbedOverrides
from sglang_prefill_ext.client.grpc_calls import overrides_message
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.questions import (
    next_items,
    score_call,
    with_overrides,
    without_items,
)
from tests.unit.grpc_frontend.calls import id_request, int32

WIDTH = 3
HALF = np.arange(6, dtype="<f2").tobytes()


def matrices(min_rows: int) -> st.SearchStrategy[np.ndarray]:
    kinds = st.sampled_from([np.float16, np.float32])
    rows = st.integers(min_rows, 4)
    return st.tuples(kinds, rows).flatmap(
        lambda each: np_st.arrays(
            each[0], (each[1], WIDTH), elements=st.floats(-9, 9, width=np.finfo(each[0]).bits)
        )
    )


def call_of(request: pb.ScoreRequest) -> ScoreCall:
    return with_overrides(score_call(request), request)


def request_with(**fields: Any) -> pb.ScoreRequest:
    request = id_request([1, 2], [[3], [4]])
    request.embed_overrides.CopyFrom(pb.EmbedOverrides(**fields))
    return request


def test_embeddings_are_not_divided_before_items_are_counted() -> None:
    many = 1_000_000
    sent = request_with(token_id=3, dtype="float16", width=1, item_counts=int32([1]) * many)
    sent.embed_overrides.items = bytes(2 * many)
    sent.item_ids.CopyFrom(pb.Int32Rows(values=int32([3]) * many, counts=int32([1]) * many))
    tracemalloc.start()
    try:
        call = score_call(sent)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert call.num_items == many
    assert peak < 60 * many


def assert_same(found: np.ndarray | None, wanted: np.ndarray | None) -> None:
    if wanted is None:
        assert found is None
    else:
        assert found is not None
        assert found.tolist() == wanted.tolist()


@given(st.none() | matrices(1), st.none() | st.lists(st.none() | matrices(1), min_size=1))
def test_what_the_client_sends_is_what_is_read(
    query: np.ndarray | None, items: list[np.ndarray | None] | None
) -> None:
    num_items = 2 if items is None else len(items)
    body = EmbedOverrides(7, query, items).fields(slice(0, num_items), num_items)
    request = pb.ScoreRequest(embed_overrides=overrides_message(body))
    sent = pb.ScoreRequest.FromString(request.SerializeToString())
    found = with_overrides(ScoreCall(items=["a"] * num_items), sent)
    assert found.embed_override_token_id == 7
    assert_same(found.query_embed_overrides, query)
    # Without any embedding nothing says how many items there are, and nothing needs to.
    own = found.item_embed_overrides
    for number, wanted in enumerate(items or []):
        assert_same(None if own is None else own[number], wanted)


def test_halves_stay_halves() -> None:
    whole = np.ones((2, 1, WIDTH), dtype=np.float16)
    message = overrides_message(EmbedOverrides(7, items=whole).fields(slice(0, 2), 2))
    assert (message.dtype, message.width, len(message.items)) == ("float16", WIDTH, 12)
    mixed = EmbedOverrides(7, query=whole[0].astype(np.float32), items=whole)
    assert overrides_message(mixed.fields(slice(0, 2), 2)).dtype == "float32"


def test_a_request_without_embeddings_has_none() -> None:
    assert not call_of(id_request([1], [[2]])).has_overrides


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"dtype": "int8"}, "dtype"),
        ({"dtype": "float16", "width": 3, "query": b"123"}, "query"),
        ({"dtype": "float16", "width": 0, "query": HALF}, "query"),
        ({"dtype": "float16", "width": 3, "items": HALF}, "item_counts"),
        ({"dtype": "float16", "width": 3, "items": HALF, "item_counts": b"1"}, "item_counts"),
        ({"dtype": "float16", "width": 3, "items": HALF, "item_counts": int32([3, -1])}, "counts"),
        ({"dtype": "float16", "width": 3, "items": HALF, "item_counts": int32([1, 2])}, "items"),
        ({"dtype": "float16", "width": 3, "item_counts": int32([1, 1])}, "items"),
        ({"dtype": "float16", "width": 3, "items": HALF, "item_counts": int32([2])}, "item_counts"),
    ],
    ids=str,
)
def test_broken_embeddings_are_refused_by_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError, match=f"embed_overrides.*{field}") as caught:
        call_of(request_with(token_id=7, **fields))
    assert str(caught.value.field).startswith("embed_overrides.")


def test_later_messages_of_a_stream_bring_no_embeddings_of_the_query() -> None:
    known = {"token_id": 7, "dtype": "float16", "width": 3}
    first = request_with(**known, query=HALF)
    later = pb.ScoreRequest(item_ids=id_request([], [[5]]).item_ids)
    later.embed_overrides.CopyFrom(pb.EmbedOverrides(query=HALF))
    with pytest.raises(RequestError, match="only the first message") as caught:
        next_items(without_items(first), later)
    assert caught.value.field == "embed_overrides.query"


def test_later_messages_of_a_stream_bring_embeddings_of_their_items() -> None:
    known = {"token_id": 7, "dtype": "float16", "width": 3}
    first = request_with(**known, query=HALF, items=HALF, item_counts=int32([1, 1]))
    bare = pb.ScoreRequest(item_ids=id_request([], [[5], [6], [7]]).item_ids)
    later = pb.ScoreRequest()
    later.CopyFrom(bare)
    later.embed_overrides.CopyFrom(pb.EmbedOverrides(items=HALF, item_counts=int32([0, 2, 0])))

    without = call_of(next_items(without_items(first), bare))
    assert without.query_embed_overrides is not None
    assert without.item_embed_overrides is None
    found = call_of(next_items(without_items(first), later))
    assert found.embed_override_token_id == 7
    own = found.item_embed_overrides
    assert [None if each is None else each.shape for each in own] == [None, (2, 3), None]
