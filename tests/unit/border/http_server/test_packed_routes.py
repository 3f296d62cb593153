"""Answers that cannot be written now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException

from sglang_prefill_ext.border.http_server.packed_routes import _written
from sglang_prefill_ext.border.tokenizer_manager.call_context import CallContext
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.metrics import FrontendMetrics

MANY = 100_000


async def test_an_answer_too_many_for_the_thread_gets_429() -> None:
    metrics = FrontendMetrics()
    path = SimpleNamespace(metrics=metrics, answers=Worker("answers", most_waiting=0))
    server: Any = SimpleNamespace(path=path)
    context = CallContext(None)
    assert await _written(server, context, 1, lambda: b"small") == b"small"
    with pytest.raises(HTTPException) as raised:
        await _written(server, context, MANY, lambda: b"large")
    assert raised.value.status_code == 429
    assert context.error is raised.value
