from __future__ import annotations

import asyncio
import time
from typing import Any, NoReturn

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, RetryInfo

from sglang_prefill_ext.errors import (
    DeadlineExceededError,
    EngineUnavailableError,
    PackedForwardError,
    PackingError,
    PrefillExtError,
    RequestAbortedError,
    RequestError,
    ServerBusyError,
    TooManyItemsError,
)
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.calls import counted
from sglang_prefill_ext.grpc_frontend.outcomes import status_of
from sglang_prefill_ext.grpc_frontend.questions import CallOptions
from sglang_prefill_ext.grpc_frontend.service import PrefillService
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.checks import empty_prompt, wrong
from sglang_prefill_ext.wire.stock_reason import StockReason

ENDS = [
    (RequestError, "INVALID_ARGUMENT", "refused"),
    (TooManyItemsError, "INVALID_ARGUMENT", "refused"),
    (ServerBusyError, "RESOURCE_EXHAUSTED", "rejected"),
    (DeadlineExceededError, "DEADLINE_EXCEEDED", "expired"),
    (RequestAbortedError, "ABORTED", "aborted"),
    (EngineUnavailableError, "UNAVAILABLE", "failed"),
    (PackedForwardError, "INTERNAL", "failed"),
]


@pytest.mark.parametrize(("kind", "code", "name"), ENDS)
def test_every_error_has_a_code_and_is_counted(
    kind: type[PrefillExtError], code: str, name: str
) -> None:
    found, status = status_of(kind("so it goes"))
    assert found is grpc.StatusCode[code]
    assert (status.code, status.message) == (found.value[0], "so it goes")
    metrics = FrontendMetrics()
    with pytest.raises(kind), counted(metrics):
        raise kind("so it goes")
    assert metrics.requests == {name: 1}


def test_a_message_that_is_no_unicode_is_sent_as_far_as_it_is() -> None:
    assert status_of(PackedForwardError("a \udc80 b"))[1].message == "a ? b"


def test_a_long_message_is_cut_between_characters() -> None:
    assert status_of(PackedForwardError("a" + "é" * 700))[1].message == "a" + "é" * 599


def test_a_wrong_field_is_named() -> None:
    (detail,) = status_of(RequestError("items: none", field="items"))[1].details
    found = BadRequest()
    assert detail.Unpack(found)
    assert [(each.field, each.description) for each in found.field_violations] == [
        ("items", "items: none")
    ]


@pytest.mark.parametrize(
    ("error", "field", "message"),
    [
        (
            empty_prompt("text"),
            "prompts",
            "The prompt is empty: it has no tokens (field `prompts`). "
            "Send at least one token, or a text that encodes to one.",
        ),
        (
            wrong("item_embed_overrides[0][3]", "a number is NaN."),
            "embed_overrides.items[0][3]",
            "embed_overrides.items[0][3]: a number is NaN.",
        ),
        (wrong("query, items", "text"), "query, items", "query, items: text"),
    ],
)
def test_fields_are_named_as_here(error: RequestError, field: str, message: str) -> None:
    _, status = status_of(error)
    found = BadRequest()
    assert status.details[0].Unpack(found)
    (violation,) = found.field_violations
    assert (violation.field, violation.description) == (field, message)
    assert status.message == message


def test_when_to_come_again_is_told() -> None:
    busy = ServerBusyError("busy")
    busy.retry_after_s = 2.5
    for error, wait_ms in (
        (busy, 2500),
        (ServerBusyError("who knows"), 1000),
        (EngineUnavailableError("away"), 1000),
    ):
        (detail,) = status_of(error)[1].details
        found = RetryInfo()
        assert detail.Unpack(found)
        assert found.retry_delay.ToMilliseconds() == wait_ms
    assert not status_of(PackedForwardError("broken"))[1].details


def test_a_defect_of_ours_is_internal() -> None:
    metrics = FrontendMetrics()
    with pytest.raises(PackingError), counted(metrics):
        raise PackingError("rows that contradict each other")
    assert status_of(PackingError("x"))[0] is grpc.StatusCode.INTERNAL
    assert metrics.requests == {"failed": 1}


def test_the_stock_path_is_no_bad_end() -> None:
    metrics = FrontendMetrics()
    with pytest.raises(StockPathTaken), counted(metrics):
        raise StockPathTaken(StockReason.OPTED_OUT)
    assert not metrics.requests


@pytest.mark.parametrize(
    ("left_s", "name"), [(None, "aborted"), (60, "aborted"), (0.02, "expired"), (-60, "expired")]
)
def test_a_call_that_is_cancelled_at_its_deadline_is_late(left_s: float | None, name: str) -> None:
    metrics = FrontendMetrics()
    deadline_ms = None if left_s is None else (time.time() + left_s) * 1e3
    with pytest.raises(asyncio.CancelledError), counted(metrics, deadline_ms):
        raise asyncio.CancelledError
    assert metrics.requests == {name: 1}


def no_session() -> NoReturn:
    raise AssertionError


class EndedCall:
    """A call whose client has gone before it can be aborted."""

    def time_remaining(self) -> None:
        pass

    async def abort(self, *_status: object) -> NoReturn:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch")


async def test_a_call_that_ends_while_it_is_aborted_is_over() -> None:
    async def refuse() -> None:
        raise RequestError("items: none")

    with pytest.raises(asyncio.CancelledError):
        await PrefillService(no_session, 0)._answer(EndedCall(), refuse())


@pytest.mark.parametrize(
    ("sessions", "asked", "outcome"),
    [
        (["up"], ["up"], "answer of up"),
        (["gone"], ["gone"], "it has gone"),
        (["gone", "up"], ["gone", "up"], "answer of up"),
        (["gone", "gone too", "up"], ["gone", "gone too"], "it has gone too"),
    ],
)
async def test_a_call_whose_session_ends_is_served_once_more_if_a_new_one_has_begun(
    sessions: list[Any], asked: list[str], outcome: str
) -> None:
    served: list[str] = []

    async def serve(session: Any, _request: pb.ScoreRequest, _options: CallOptions) -> str:
        served.append(session)
        if session == "up":
            return f"answer of {session}"
        del sessions[: len(sessions) > 1]
        raise EngineUnavailableError(f"it has {session}")

    asking = PrefillService(lambda: sessions[0], 0)._ask(serve, pb.ScoreRequest(), EndedCall())
    if outcome.startswith("answer"):
        assert await asking == outcome
    else:
        with pytest.raises(EngineUnavailableError, match=f"^{outcome}$"):
            await asking
    assert served == asked
