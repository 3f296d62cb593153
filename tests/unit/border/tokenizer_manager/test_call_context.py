from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException

from sglang_prefill_ext.border.tokenizer_manager.call_context import (
    HTTP_ANSWERED,
    CallContext,
    counted,
    with_status,
)
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import (
    DeadlineExceededError,
    EngineUnavailableError,
    PackedForwardError,
    PrefillExtError,
    RequestAbortedError,
    RequestError,
    ServerBusyError,
)
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.status import end_by
from sglang_prefill_ext.wire.stock_reason import StockReason

CASES = [
    (RequestAbortedError, 503, "aborted"),
    (EngineUnavailableError, 503, "failed"),
    (PackedForwardError, 500, "failed"),
    (ServerBusyError, 429, "rejected"),
    (DeadlineExceededError, 504, "expired"),
]


def http_request() -> Any:
    return SimpleNamespace(scope={})


def test_the_timeout_of_a_request_begins_once() -> None:
    config = PrefillOnlyConfig(timeout_ms=5)
    for headers in ({}, {"x-prefill-only-timeout-ms": "9"}):
        context = CallContext(SimpleNamespace(headers=headers, scope={}))
        options = context.options(config)
        assert options.deadline_ms is not None
        assert context.options(config) is options
    program = CallContext(None)
    first, second = (program.options(config) for _ in range(2))
    assert first is not second


def test_every_answered_error_is_tried() -> None:
    assert {kind for kind, _, _ in CASES} == set(HTTP_ANSWERED)


@pytest.mark.parametrize(("kind", "status", "name"), CASES)
@pytest.mark.parametrize("request_object", [None, object(), http_request()])
def test_an_error_keeps_its_type_and_gets_a_status(
    kind: type[PrefillExtError], status: int, name: str, request_object: Any
) -> None:
    error = kind("what happened")
    answer = with_status(error, CallContext(request_object))
    assert isinstance(answer, kind)
    assert isinstance(answer, HTTPException)
    assert (answer.status_code, answer.detail) == (status, "what happened")
    assert end_by(error).counted == end_by(answer).counted == name


@pytest.mark.parametrize("error", [ValueError("of ours"), KeyError("of ours")])
def test_an_error_that_nobody_expected_is_not_the_clients(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    metrics, context = FrontendMetrics(None), CallContext(http_request())
    with pytest.raises(PackedForwardError) as raised, counted(metrics, context):
        raise error
    assert raised.value.status_code == 500  # type: ignore[attr-defined]
    assert "of ours" in str(raised.value)
    assert metrics.as_dict()["requests"] == {"failed": 1}
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (RequestError("wrong"), {"refused": 1}),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), {}),
        (StockPathTaken(StockReason.UNUSUAL_INPUT), {}),
        (HTTPException(404), {}),
        (asyncio.CancelledError(), {"aborted": 1}),
    ],
)
def test_other_errors_are_what_they_were(error: BaseException, counts: dict[str, int]) -> None:
    metrics = FrontendMetrics(None)
    with pytest.raises(type(error)) as raised, counted(metrics, CallContext(None)):
        raise error
    assert raised.value is error
    assert metrics.as_dict()["requests"] == counts


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.1, "2")])
def test_a_busy_server_says_when_to_come_again_in_whole_seconds(
    seconds: float, header: str
) -> None:
    error = ServerBusyError("busy")
    error.retry_after_s = seconds
    answer = with_status(error, CallContext(None))
    assert answer.headers == {"Retry-After": header}
    assert isinstance(answer, ServerBusyError)
    assert answer.retry_after_s == seconds
