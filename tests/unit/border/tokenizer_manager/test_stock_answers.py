"""Errors of calls that an engine serves for other processes."""

from __future__ import annotations

import pytest
from fastapi import HTTPException

from sglang_prefill_ext.border.tokenizer_manager.call_context import CallContext, with_status
from sglang_prefill_ext.border.tokenizer_manager.stock_answers import stock_error
from sglang_prefill_ext.errors import EngineUnavailableError, RequestAbortedError, ServerBusyError
from sglang_prefill_ext.wire.checks import wrong
from sglang_prefill_ext.wire.status import Status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (HTTPException(503, "The request queue is full."), Status.UNREACHABLE),
        (with_status(RequestAbortedError("aborted"), CallContext(None)), Status.ABORTED),
        (with_status(EngineUnavailableError("gone"), CallContext(None)), Status.UNREACHABLE),
        (HTTPException(404, "unknown"), Status.FAILED),
        (ValueError("too long"), Status.REFUSED),
        (RuntimeError("so it goes"), Status.FAILED),
    ],
    ids=["full", "aborted", "gone", "unknown", "wrong", "failed"],
)
def test_an_error_comes_back_as_what_it_was(error: Exception, status: Status) -> None:
    assert stock_error("a", error).status is status


def test_details_are_kept() -> None:
    busy = ServerBusyError("busy")
    busy.retry_after_s = 2.0
    found = stock_error("a", with_status(busy, CallContext(None)))
    assert (found.status, found.message, found.retry_after_s) == (Status.REJECTED, "busy", 2.0)
    assert stock_error("a", wrong("items", "none")).field == "items"
