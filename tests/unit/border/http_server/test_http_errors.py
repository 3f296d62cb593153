from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang_prefill_ext.border.http_server.fast_route import answer_errors
from sglang_prefill_ext.border.tokenizer_manager.call_context import call_with, with_status
from sglang_prefill_ext.errors import ServerBusyError


class StubServing:
    """Drops the status and the headers of an error, as SGLang does."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    async def handle(self, _serving: Any, _request: Any, _raw_request: Any) -> Any:
        return self.answer

    def create_error_response(self, message: str, err_type: str, status_code: int) -> Any:
        return SimpleNamespace(message=message, type=err_type, status=status_code, headers={})


def http_request() -> Any:
    return SimpleNamespace(scope={})


async def test_an_error_is_answered_with_its_status_and_headers() -> None:
    serving, raw_request = StubServing(answer="400, and no headers"), http_request()
    with_status(ServerBusyError("busy"), call_with(raw_request))
    answer = await answer_errors(serving.handle, serving, None, raw_request)
    assert (answer.message, answer.type, answer.status) == ("busy", "429", 429)
    assert answer.headers == {"Retry-After": "1"}
