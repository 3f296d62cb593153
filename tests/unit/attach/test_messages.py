from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.attach import messages
from sglang_prefill_ext.attach.messages import Beat, Facts, Hello, Rows, RowsAnswer, StockScore
from sglang_prefill_ext.config import Order, PrefillOnlyConfig
from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.wire.packed import NO_INTS, WHOLE_VECTOR, PackedRows, int_array
from tests.unit.attach.engines import facts

ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=8)


@given(
    prefix=st.lists(st.integers(0, 2**31 - 1), max_size=8),
    suffixes=st.lists(ids, min_size=1, max_size=5),
    own_labels=st.booleans(),
    normalised=st.booleans(),
    priority=st.integers(-(2**31), 2**31 - 1),
    deadline_ms=st.none() | st.floats(0, 1e15),
)
def test_rows_arrive_as_they_were_sent(
    prefix: list[int],
    suffixes: list[list[int]],
    own_labels: bool,
    normalised: bool,
    priority: int,
    deadline_ms: float | None,
) -> None:
    count = len(suffixes)
    rows = PackedRows(
        int_array(prefix + [token for suffix in suffixes for token in suffix]),
        len(prefix),
        int_array([len(suffix) for suffix in suffixes]),
        int_array(list(range(2 * count if own_labels else 3))),
        int_array([2] * count) if own_labels else NO_INTS,
        normalised,
    )
    options = RequestOptions(priority, deadline_ms, keep_prefix=normalised)
    message = messages.decode_from_frontend(messages.encode(Rows.of("r", rows, options)))
    assert isinstance(message, Rows)
    assert (message.rid, message.options) == ("r", options)
    found = message.rows()
    for field in ("tokens", "suffix_lens", "label_ids", "label_lens"):
        np.testing.assert_array_equal(getattr(found, field), getattr(rows, field))
    assert (found.prefix_len, found.normalised) == (rows.prefix_len, normalised)


def test_a_request_for_vectors_keeps_their_width() -> None:
    rows = PackedRows(int_array([1, 2]), 0, int_array([2]), NO_INTS, NO_INTS, True, WHOLE_VECTOR)
    message = messages.decode_from_frontend(messages.encode(Rows.of("r", rows, RequestOptions())))
    assert isinstance(message, Rows)
    assert message.rows().vector_width == WHOLE_VECTOR


def test_inconsistent_rows_are_refused() -> None:
    rows = PackedRows(int_array([1, 2]), 0, int_array([2]), int_array([3]), NO_INTS)
    whole = Rows.of("r", rows, RequestOptions())
    broken = msgspec.structs.replace(whole, suffix_lens=int_array([3]).tobytes())
    with pytest.raises(PackingError, match="add up"):
        broken.rows()


def test_facts_arrive_with_their_configuration() -> None:
    sent = facts(config=PrefillOnlyConfig(order=Order.FCFS, max_items=7, attach="/x"))
    found = messages.decode_from_engine(messages.encode(sent))
    assert isinstance(found, Facts)
    assert found == sent
    assert found.config.order is Order.FCFS


@pytest.mark.parametrize(
    "message",
    [
        Hello(pid=4),
        Beat(2, {"packed": 3}, {"items": 9}),
        StockScore("r", {"query": [1], "items": ["a"], "temperature": 0.5}, {"x": "y"}),
    ],
)
def test_other_messages_arrive_as_they_were_sent(message: messages.FromFrontend) -> None:
    assert messages.decode_from_frontend(messages.encode(message)) == message


def test_an_answer_shows_its_values_as_an_array() -> None:
    answer = RowsAnswer("r", "ok", values=np.array([1.5, -2], "<f4").tobytes())
    assert answer.row_values().tolist() == [1.5, -2.0]


@given(st.binary(max_size=40))
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        messages.decode_from_engine(b"\xc1" + body)
