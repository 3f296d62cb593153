from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.attach import messages
from sglang_prefill_ext.attach.messages import Beat, Facts, Hello, Rows, RowsAnswer, StockScore
from sglang_prefill_ext.config import Order, PrefillOnlyConfig
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows, to_bytes
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.status import Status
from tests.unit.attach.engines import facts


@given(
    priority=st.integers(-(2**31), 2**31 - 1),
    deadline_ms=st.none() | st.floats(0, 1e15),
    keep_prefix=st.booleans(),
)
def test_rows_arrive_as_they_were_sent(
    priority: int, deadline_ms: float | None, keep_prefix: bool
) -> None:
    rows = PackedRows(int_array([1, 2]), 1, int_array([1]), Labels(int_array([3])))
    sent = Rows("r", to_bytes(rows), RequestOptions(priority, deadline_ms, keep_prefix))
    assert messages.decode_from_frontend(messages.encode(sent)) == sent


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
        Beat(2, {"packed": 3}, {"items": 9}, "huggingface"),
        StockScore("r", {"query": [1], "items": ["a"], "temperature": 0.5}, {"x": "y"}),
    ],
)
def test_other_messages_arrive_as_they_were_sent(message: messages.FromFrontend) -> None:
    assert messages.decode_from_frontend(messages.encode(message)) == message


def test_an_answer_shows_its_values_as_an_array() -> None:
    sent = RowsAnswer("r", PackedResult(Status.OK, values=np.array([1.5, -2], "<f4").tobytes()))
    answer = messages.decode_from_engine(messages.encode(sent))
    assert isinstance(answer, RowsAnswer)
    assert answer.result.row_values().tolist() == [1.5, -2.0]


@given(st.binary(max_size=40))
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        messages.decode_from_engine(b"\xc1" + body)
