"""How packed requests that end badly are answered, counted and raised."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import HTTPException

from sglang_prefill_ext.errors import (
    PackedForwardError,
    PrefillExtError,
    RequestError,
    ServerBusyError,
)
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.status import BAD_ENDS, end_by

logger = logging.getLogger(__name__)

HTTP_ANSWERED = tuple(end.error for end in BAD_ENDS if end.http and end.error is not RequestError)
"""Errors that get a status here; SGLang itself answers a `RequestError` with 400."""

# Entry of an ASGI scope: the error with which the request ends.
_ERROR = "prefill_only_error"

_WITH_STATUS = {kind: type(kind.__name__, (HTTPException, kind), {}) for kind in HTTP_ANSWERED}


@contextmanager
def counted(metrics: FrontendMetrics, request: Any) -> Iterator[None]:
    """Count how a packed call inside ends badly, and give the error its HTTP status.

    An error that nobody expected is ours: it is logged, and not the client's fault, whatever its
    type is.

    Args:
        request: the HTTP request that ends with it, if any.

    Raises:
        RequestError, UnicodeError: the request is wrong (HTTP 400).
        PrefillExtError: one of `HTTP_ANSWERED`, which is an `HTTPException` as well.
    """
    try:
        yield
    except RequestError:
        metrics.record_error("refused")
        raise
    except HTTP_ANSWERED as error:
        metrics.record_error(end_by(error).counted)
        raise with_status(error, request) from error
    except (StockPathTaken, HTTPException, UnicodeError):
        raise
    except Exception as error:
        logger.exception("Prefill-only serving: a request could not be answered")
        metrics.record_error("failed")
        failure = PackedForwardError(f"{type(error).__name__}: {error}")
        raise with_status(failure, request) from error


def with_status(error: PrefillExtError, request: Any) -> HTTPException:
    """Return an error of the same type that has an HTTP status, too.

    SGLang's HTTP and gRPC servers look for the status, callers of `Engine.score` for the type.

    Args:
        error: one of `HTTP_ANSWERED`.
        request: the HTTP request that ends with it, if any.
    """
    end = end_by(error)
    headers = None
    if isinstance(error, ServerBusyError):
        headers = {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
    answer: HTTPException = _WITH_STATUS[end.error](end.http, str(error), headers)
    vars(answer).update(vars(error))
    getattr(request, "scope", {})[_ERROR] = answer
    return answer


async def answer_errors(
    original: Callable[..., Awaitable[Any]], serving: Any, request: Any, raw_request: Any
) -> Any:
    """AROUND `OpenAIServingBase.handle_request`.

    It drops the headers of an `HTTPException`, and rerank its status as well.
    """
    response = await original(serving, request, raw_request)
    error: HTTPException | None = getattr(raw_request, "scope", {}).get(_ERROR)
    return response if error is None else error_response(serving, error)


def error_response(serving: Any, error: HTTPException | ValueError) -> Any:
    """Return the answer to a request that ends with an error, as an OpenAI route gives it."""
    if isinstance(error, ValueError):
        return serving.create_error_response(str(error))
    status = error.status_code
    answer = serving.create_error_response(error.detail, str(status), status)
    answer.headers.update(error.headers or {})
    return answer
