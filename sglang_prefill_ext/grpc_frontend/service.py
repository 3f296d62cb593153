"""The methods of `prefill_ext.v1.Prefill`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol, TypeVar

from grpc_status import rpc_status

from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.errors import (
    EngineUnavailableError,
    PackedForwardError,
    PrefillExtError,
)
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.outcomes import status_of
from sglang_prefill_ext.grpc_frontend.pipeline import in_order
from sglang_prefill_ext.grpc_frontend.questions import (
    CallOptions,
    next_items,
    options_of,
    prompts_of,
    score_question,
    without_items,
)
from sglang_prefill_ext.grpc_frontend.scoring import Scoring
from sglang_prefill_ext.grpc_frontend.vectors import Vectors

logger = logging.getLogger(__name__)

T = TypeVar("T")

_AT_A_TIME = 3  # messages of a stream; while one is computed the next ones are packed


class Engines(Protocol):
    """One engine or several, which may be others later."""

    @property
    def session(self) -> Session:
        """Raises: EngineUnavailableError: there is none."""
        ...


class _Served(NamedTuple):
    session: Session
    scoring: Scoring
    vectors: Vectors


class PrefillService:
    """Serves calls by whatever session there is with the engines."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._last: _Served | None = None

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:  # noqa: N802
        return await _answer(context, self._score(request, context))

    async def ScoreStream(  # noqa: N802
        self, requests: AsyncIterator[pb.ScoreRequest], context: Any
    ) -> AsyncIterator[pb.ScoreResponse]:
        async def serve(request: pb.ScoreRequest) -> pb.ScoreResponse:
            return await self._score(request, context)

        async with aclosing(in_order(_whole(requests), serve, at_a_time=_AT_A_TIME)) as answers:
            while (answer := await _answer(context, anext(answers, None))) is not None:
                yield answer

    async def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:  # noqa: N802
        return await _answer(context, self._embed(request, context))

    async def Classify(  # noqa: N802
        self, request: pb.ClassifyRequest, context: Any
    ) -> pb.ClassifyResponse:
        return await _answer(context, self._classify(request, context))

    async def _score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        question, options = score_question(request), _options(request.options, context)
        return await self._by_session(lambda served: served.scoring.score(question, options))

    async def _embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        prompts, options = prompts_of(request.prompts), _options(request.options, context)
        vectors, usage = await self._by_session(
            lambda served: served.vectors.vectors(
                prompts, request.dimensions, options, request.adapter
            )
        )
        return pb.EmbedResponse(vectors=vectors.tobytes(), width=vectors.shape[1], usage=usage)

    async def _classify(self, request: pb.ClassifyRequest, context: Any) -> pb.ClassifyResponse:
        prompts, options = prompts_of(request.prompts), _options(request.options, context)

        async def classify(served: _Served) -> pb.ClassifyResponse:
            values, usage = await served.vectors.vectors(prompts, 0, options, request.adapter)
            return pb.ClassifyResponse(
                values=values.tobytes(),
                width=values.shape[1],
                class_names=served.session.facts.class_names,
                usage=usage,
            )

        return await self._by_session(classify)

    def forget(self) -> None:
        """Keep nothing of a session that has ended; it has a tokenizer of its own."""
        self._last = None

    async def _by_session(self, ask: Callable[[_Served], Awaitable[T]]) -> T:
        """Serve by the session of now; again, if other engines have taken over meanwhile."""
        served = self._served()
        try:
            return await ask(served)
        except EngineUnavailableError:
            if self._engines.session is served.session:
                raise
            return await ask(self._served())

    def _served(self) -> _Served:
        """What serves the session of now.

        Raises:
            EngineUnavailableError: there is none.
        """
        session = self._engines.session
        if self._last is None or self._last.session is not session:
            self._last = _Served(session, Scoring(session), Vectors(session))
        return self._last


async def _whole(requests: AsyncIterator[pb.ScoreRequest]) -> AsyncIterator[pb.ScoreRequest]:
    """The messages of a stream, each with the query and the labels of the first one."""
    shared: pb.ScoreRequest | None = None
    async for request in requests:
        if shared is None:
            shared = without_items(request)
            yield request
        else:
            yield next_items(shared, request)


def _options(options: pb.Options, context: Any) -> CallOptions:
    return options_of(options, context.time_remaining())


async def _answer(context: Any, work: Awaitable[T]) -> T:
    """Return what the work returns; its errors end the call with a status."""
    try:
        return await work
    except PrefillExtError as error:
        wrong = error
    except Exception as error:
        logger.exception("A call failed")
        wrong = PackedForwardError(f"The front end failed: {type(error).__name__}: {error}")
    code, status = status_of(wrong)
    details = rpc_status.to_status(status).trailing_metadata
    await context.abort(code, status.message, details)
    raise wrong  # `abort` has raised
