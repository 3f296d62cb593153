"""The context of a call, handed from its route to hooks behind SGLang's code; and its errors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from fastapi import HTTPException

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import (
    PackedForwardError,
    PrefillExtError,
    RequestError,
    ServerBusyError,
)
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import RequestOptions, headers_of, opted_out, options_of
from sglang_prefill_ext.frontend.score.body_forms import BodyOverrides
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.status import BAD_ENDS, end_by
from sglang_prefill_ext.wire.stock_reason import StockReason

logger = logging.getLogger(__name__)

HTTP_ANSWERED = tuple(end.error for end in BAD_ENDS if end.error is not RequestError)
"""Errors that get their HTTP status here; SGLang itself answers a `RequestError` with 400."""

LEFT_TO_SGLANG = (StockPathTaken, RequestError, HTTPException, UnicodeError)
"""Ends of a packed call that SGLang serves, or answers in its own way."""

_T = TypeVar("_T")

_tasks: set[asyncio.Task[Any]] = set()

_WITH_STATUS = {kind: type(kind.__name__, (HTTPException, kind), {}) for kind in HTTP_ANSWERED}


class CallContext:
    """One HTTP request, or one call of a program, and what was found out about it.

    Args:
        request: of the client, or an object in its place; None for a call of an offline engine.
        parent: the call on whose behalf requests are sent to SGLang's scheduler, see `is_stock`.
        field: what the client calls the prompts of these; empty: as SGLang's requests do.

    Attributes:
        taken: why SGLang is to serve it; None if its route has found no reason.
        overrides: embeddings that were taken out of its body.
        explains: whether the client asked how it was served.
        explanation: how it was served, if asked for; None before that.
        error: the error that it ends with, kept because SGLang drops an `HTTPException`'s headers.
        is_stock: its requests go to SGLang's scheduler, and are not counted again.
    """

    def __init__(self, request: Any, parent: CallContext | None = None, *, field: str = "") -> None:
        self.request = request
        self.field = field
        self.taken: StockPathTaken | None = None
        self.overrides: BodyOverrides | None = None
        self.explains = False
        self.explanation: dict[str, Any] | None = None
        self.error: HTTPException | None = None
        self.is_stock = parent is not None
        self._parent = parent
        self._options: RequestOptions | None = None

    @property
    def is_opted_out(self) -> bool:
        """Whether the client wants the stock path."""
        return opted_out(headers_of(self.request))

    def raise_if_taken(self) -> None:
        """Raises: StockPathTaken: the route has found that SGLang is to serve the call."""
        if self.taken is not None:
            raise self.taken

    def raise_if_opted_out(self) -> None:
        """Raises: StockPathTaken: the client wants the stock path."""
        if self.is_opted_out:
            raise StockPathTaken(StockReason.OPTED_OUT)

    def options(self, config: PrefillOnlyConfig) -> RequestOptions:
        """The options in the client's headers, and the server's timeout if they have none.

        A timeout begins when they are first asked for. Programs make all their calls in one
        context, so there it begins each time.

        Raises:
            RequestError: one has a wrong value.
        """
        if self._options is not None:
            return self._options
        options = options_of(headers_of(self.request), now_ms=time.time() * 1e3)
        options = options.within(config.timeout_ms)
        if self.request is not None:
            self._options = options
        return options

    def explain(self, explanation: Callable[..., dict[str, Any]], *about: Any) -> None:
        """Keep the explanation of how the call was served, if that was asked for."""
        if self.explains:
            self.explanation = explanation(*about)

    def end_with(self, error: HTTPException) -> None:
        self.error = error
        if self._parent is not None:
            self._parent.end_with(error)

    def belongs_to(self, request: Any) -> bool:
        """Whether `request` is this call's, maybe as another object with the same ASGI scope."""
        scope = getattr(request, "scope", None)
        same = scope is not None and scope is getattr(self.request, "scope", None)
        return same or request is self.request


_current: ContextVar[CallContext | None] = ContextVar("prefill_only_call", default=None)


def current_call() -> CallContext:
    """The call that the current task works for; a new one without a request if there is none."""
    return _current.get() or CallContext(None)


def call_with(request: Any) -> CallContext:
    """The call of a request; the current task works for it from now on."""
    call = _current.get()
    if call is None or not call.belongs_to(request):
        call = CallContext(request)
        _current.set(call)
    return call


@contextmanager
def working_for(call: CallContext) -> Iterator[CallContext]:
    """Make `call` the current one in the body of the `with` statement; works in threads, too."""
    before = _current.set(call)
    try:
        yield call
    finally:
        _current.reset(before)


@contextmanager
def stock_path(*, field: str = "") -> Iterator[None]:
    """Send requests of the `with` body to SGLang's scheduler, see `CallContext`."""
    call = current_call()
    with working_for(CallContext(call.request, parent=call, field=field)):
        yield


def keep_running(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Make a task that is kept until it is done; one without a reference may be collected."""
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


@contextmanager
def counted(metrics: FrontendMetrics, context: CallContext, *, requests: int = 1) -> Iterator[None]:
    """Count the error of a packed call inside, and give the error its HTTP status.

    An unexpected error is logged and becomes a `PackedForwardError`: whatever its type, it is our
    defect and not the client's fault.

    Args:
        requests: as how many the call counts.

    Raises:
        RequestError, UnicodeError: the request is wrong (HTTP 400).
        PrefillExtError: one of `HTTP_ANSWERED`, which is an `HTTPException` as well.
    """
    try:
        yield
    except RequestError:
        metrics.count_requests("refused", requests)
        raise
    except HTTP_ANSWERED as error:
        metrics.count_requests(end_by(error).counted, requests)
        raise with_status(error, context) from error
    except LEFT_TO_SGLANG:
        raise
    except asyncio.CancelledError:  # by a program, or where the client's end cancels its call
        metrics.count_requests("aborted", requests)
        raise
    except Exception as error:
        logger.exception("Prefill-only serving: a request could not be answered")
        metrics.count_requests("failed", requests)
        failure = PackedForwardError(f"{type(error).__name__}: {error}")
        raise with_status(failure, context) from error


def with_status(error: PrefillExtError, context: CallContext) -> HTTPException:
    """Return an error of the same type that has an HTTP status, too.

    SGLang's HTTP and gRPC servers use the status, callers of `Engine.score` the type.

    Args:
        error: one of `HTTP_ANSWERED`, with which the call ends.
    """
    end = end_by(error)
    headers = error.retry_header() if isinstance(error, ServerBusyError) else None
    answer: HTTPException = _WITH_STATUS[end.error](end.http, str(error), headers)
    vars(answer).update(vars(error))
    context.end_with(answer)
    return answer
