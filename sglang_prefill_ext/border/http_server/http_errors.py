"""Answers to calls that end with an error, in the form of OpenAI's routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse

from sglang_prefill_ext.border.tokenizer_manager.call_context import call_with
from sglang_prefill_ext.errors import PrefillExtError


async def answer_errors(
    original: Callable[..., Awaitable[Any]], serving: Any, request: Any, raw_request: Any
) -> Any:
    """AROUND `OpenAIServingBase.handle_request`.

    It drops the headers of an `HTTPException`, and rerank its status as well.
    """
    context = call_with(raw_request)
    response = await original(serving, request, raw_request)
    error = context.error
    return response if error is None else error_response(serving, error)


def error_response(serving: Any, error: HTTPException | ValueError) -> Any:
    """Return the answer to a request that ends with an error, as an OpenAI route gives it."""
    if isinstance(error, ValueError):
        return serving.create_error_response(str(error))
    status = error.status_code
    answer = serving.create_error_response(error.detail, str(status), status)
    answer.headers.update(error.headers or {})
    return answer


def refusal(error: PrefillExtError) -> JSONResponse:
    """Return the answer of a route of ours to a wrong request, in the form of OpenAI's routes."""
    body = {"object": "error", "message": str(error), "type": "BadRequestError"}
    return JSONResponse(body | {"param": getattr(error, "field", ""), "code": 400}, 400)
