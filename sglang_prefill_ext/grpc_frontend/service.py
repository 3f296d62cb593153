"""Implements the methods of the gRPC service `prefill_ext.v1.Prefill`, and reports errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

import grpc
from grpc_status import rpc_status

from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.errors import EngineUnavailableError, PackedForwardError, PrefillExtError
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.calls import classify, embed, score
from sglang_prefill_ext.grpc_frontend.outcomes import status_of
from sglang_prefill_ext.grpc_frontend.questions import (
    CallOptions,
    next_items,
    options_of,
    without_items,
)

logger = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=Any)
AnswerT = TypeVar("AnswerT")

_TOO_LARGE = "The answer has {} bytes, the limit is {}. Ask for fewer items or labels at a time."

_AT_A_TIME = 3  # messages of a stream; while one is computed the next ones are packed


class PrefillService:
    """Serves calls with the current session with the engines.

    Args:
        session: returns the current session, or raises EngineUnavailableError.
        most_bytes: size of the largest answer; gRPC would log a traceback for a larger one.
    """

    def __init__(self, session: Callable[[], Session], most_bytes: int) -> None:
        self._session = session
        self._most_bytes = most_bytes

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:  # noqa: N802
        return await self._answer(context, self._ask(score, request, context))

    async def ScoreStream(  # noqa: N802
        self, requests: AsyncIterator[pb.ScoreRequest], context: Any
    ) -> AsyncIterator[pb.ScoreResponse]:
        serve = partial(self._ask, score, context=context)
        async with aclosing(in_order(_whole(requests), serve, at_a_time=_AT_A_TIME)) as answers:
            while (answer := await self._answer(context, anext(answers, None))) is not None:
                yield answer

    async def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:  # noqa: N802
        return await self._answer(context, self._ask(embed, request, context))

    async def Classify(  # noqa: N802
        self, request: pb.ClassifyRequest, context: Any
    ) -> pb.ClassifyResponse:
        return await self._answer(context, self._ask(classify, request, context))

    async def _answer(self, context: Any, work: Awaitable[AnswerT]) -> AnswerT:
        """Return what the work returns; its errors, or its size, may end the call with a status."""
        try:
            answer: Any = await work
        except PrefillExtError as error:
            wrong = error
        except Exception as error:
            logger.exception("A call failed")
            wrong = PackedForwardError(f"The front end failed: {type(error).__name__}: {error}")
        else:
            size = 0 if answer is None else answer.ByteSize()
            if size <= self._most_bytes:
                return cast(AnswerT, answer)
            message = _TOO_LARGE.format(size, self._most_bytes)
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        code, status = status_of(wrong)
        details = rpc_status.to_status(status).trailing_metadata
        await _abort(context, code, status.message, details)

    async def _ask(
        self,
        serve: Callable[[Session, RequestT, CallOptions], Awaitable[AnswerT]],
        request: RequestT,
        context: Any,
    ) -> AnswerT:
        """Serve with the current session; if it ends and a new one has begun, serve with that."""
        options = options_of(request.options, context.time_remaining())
        session = self._session()
        try:
            return await serve(session, request, options)
        except EngineUnavailableError:
            if self._session() is session:
                raise
            return await serve(self._session(), request, options)


async def _whole(requests: AsyncIterator[pb.ScoreRequest]) -> AsyncIterator[pb.ScoreRequest]:
    """The messages of a stream, each with the query and the labels of the first one."""
    shared: pb.ScoreRequest | None = None
    async for request in requests:
        if shared is None:
            shared = without_items(request)
            yield request
        else:
            yield next_items(shared, request)


async def _abort(context: Any, code: grpc.StatusCode, message: str, details: Any = ()) -> NoReturn:
    """End a call with a status.

    Raises:
        CancelledError: the call ended meanwhile, so nobody gets the status.
    """
    try:
        await context.abort(code, message, details)
    except grpc.aio.InternalError as ended:
        raise asyncio.CancelledError from ended
    raise AssertionError("`abort` has raised")


async def in_order(
    requests: AsyncIterator[RequestT],
    serve: Callable[[RequestT], Coroutine[Any, Any, AnswerT]],
    *,
    at_a_time: int,
) -> AsyncGenerator[AnswerT, None]:
    """Serve requests as they come, at most `at_a_time` at once, and yield the answers in order.

    An answer does not wait for the next request. The first error ends everything.
    """
    tasks: asyncio.Queue[asyncio.Task[AnswerT] | None] = asyncio.Queue()
    started: set[asyncio.Task[AnswerT]] = set()
    places = asyncio.Semaphore(at_a_time)

    async def read() -> None:
        async for request in requests:
            await places.acquire()
            task = asyncio.ensure_future(serve(request))
            started.add(task)
            tasks.put_nowait(task)

    reader = asyncio.ensure_future(read())
    reader.add_done_callback(lambda _: tasks.put_nowait(None))
    try:
        while (task := await tasks.get()) is not None:
            yield await task
            started.discard(task)
            places.release()
        await reader
    finally:
        for each in (reader, *started):
            each.cancel()
        await asyncio.gather(reader, *started, return_exceptions=True)
