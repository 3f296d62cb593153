"""Calls of attached front ends as SGLang takes them, and their answers as they travel back."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import numpy as np
from fastapi import HTTPException

from sglang_prefill_ext.attach.messages import StockAnswer, StockError
from sglang_prefill_ext.errors import PrefillExtError, RequestError
from sglang_prefill_ext.wire.status import Status, end_by, status_of_http

logger = logging.getLogger(__name__)


def rows_of(values: list[Any]) -> list[list[float]]:
    """Scores or vectors as lists of floats; a single number becomes a list of one.

    Raises:
        RequestError: they have another form, such as sparse vectors.
    """
    try:
        rows = [[each] if isinstance(each, int | float) else each for each in values]
        return msgspec.convert(rows, list[list[float]])
    except msgspec.ValidationError as error:
        raise RequestError(
            f"The answers of this model cannot be sent over gRPC ({error}). Use HTTP."
        ) from error


def with_override_arrays(arguments: dict[str, Any]) -> dict[str, Any]:
    """Turn embeddings, which are sent as lists, into the arrays that our hook takes."""
    query, items = (arguments.get(f"{name}_embed_overrides") for name in ("query", "item"))
    found: dict[str, Any] = {}
    if query is not None:
        found["query_embed_overrides"] = np.array(query, dtype=np.float32)
    if items is not None:
        found["item_embed_overrides"] = [
            None if each is None else np.array(each, dtype=np.float32) for each in items
        ]
    return arguments | found


class Caller:
    """Takes the place of the HTTP request, which SGLang and our hooks look at."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers
        self.left = False

    async def is_disconnected(self) -> bool:
        return self.left


def stock_error(rid: str, error: Exception) -> StockError:
    if isinstance(error, HTTPException):
        wait_s = float((error.headers or {}).get("Retry-After", 0))
        status = status_of_http(error.status_code)
        ours: Exception = error  # may be an HTTP error as well, see `with_status`
        if isinstance(ours, PrefillExtError):
            status = end_by(ours).status
        return StockError(rid, status, str(error.detail), wait_s)
    if isinstance(error, ValueError):
        return StockError(rid, Status.REFUSED, str(error), field=getattr(error, "field", ""))
    logger.error("A call of an attached front end failed", exc_info=error)
    return StockError(rid, Status.FAILED, f"{type(error).__name__}: {error}")


def forget_outcome(task: asyncio.Task[StockAnswer]) -> None:
    if not task.cancelled():
        task.exception()  # marks it as read: asyncio logs an exception that nobody has read
