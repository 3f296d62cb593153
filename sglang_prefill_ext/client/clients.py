"""`PrefillClient`, the blocking client, and `AsyncPrefillClient`, the one for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import httpx
import numpy as np
from numpy.typing import NDArray
from tenacity import AsyncRetrying, Retrying

from sglang_prefill_ext.client import exchange
from sglang_prefill_ext.client.answers import Scores
from sglang_prefill_ext.client.methods import Methods
from sglang_prefill_ext.client.options import DEFAULT_RETRIES, Options, Retries
from sglang_prefill_ext.client.requests import AnswerT, Plan, Request


class PrefillClient(Methods[Scores, NDArray[np.float32], httpx.BaseTransport]):
    """Asks one server; threads may share it. Close it, or use it in a ``with`` statement.

    Args:
        base_url: where the server is: ``http://`` or ``https://``, or ``grpc://`` or ``grpcs://``
            (TLS) for gRPC front ends.
        api_key: sent as ``Authorization: Bearer``.
        max_items_per_request: longer lists are sent in parts, one after the other.
        retries: when a request is repeated.
        transport: httpx transport that carries HTTP requests instead of the network.
        credentials: of ``grpcs://``, a `grpc.ChannelCredentials`; None trusts known authorities.

    Every method raises:
        RequestError: an argument is of the wrong kind; nothing was sent.
        ServerRefusedError: the server refused the request, or failed at it.
        ServerBusyError: too much waits there, even after the repeats.
        ServerUnavailableError: no connection, or HTTP 503, even after the repeats.
        DeadlineExceededError: no answer within `Options.timeout_s`.
        UnexpectedAnswerError: what answers is not an SGLang server, or has no labels.
    """

    _kinds = (httpx.Client, grpc)

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        self._carrier.close()

    def __enter__(self) -> PrefillClient:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _run(
        self, options: Options, plan: Callable[..., Plan[AnswerT]], *args: Any, **kwargs: Any
    ) -> AnswerT:
        planned, deadline = self._planned(options, plan, *args, **kwargs)

        def ask(request: Request[AnswerT]) -> AnswerT:
            return _finished(self._ask(request, options, deadline))

        retrying = self._retries.retrying(Retrying, deadline)
        return planned.join([retrying(ask, request) for request in planned.requests])


def _finished(asking: Coroutine[Any, Any, AnswerT]) -> AnswerT:
    """Run a coroutine that waits for nothing."""
    try:
        asking.send(None)
    except StopIteration as end:
        found: AnswerT = end.value
        return found
    raise AssertionError("a blocking client has nothing to wait for")


class AsyncPrefillClient(
    Methods[
        Coroutine[Any, Any, Scores],
        Coroutine[Any, Any, NDArray[np.float32]],
        httpx.AsyncBaseTransport,
    ]
):
    """`PrefillClient` with coroutines: same arguments, answers and errors.

    Args:
        max_concurrency: most requests of one call at a time, when its list is sent in parts.
    """

    _kinds = (httpx.AsyncClient, grpc.aio)

    def __init__(
        self,
        base_url: str = exchange.DEFAULT_URL,
        *,
        api_key: str | None = None,
        max_items_per_request: int = 1000,
        max_concurrency: int = 8,
        retries: Retries = DEFAULT_RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        super().__init__(
            base_url,
            api_key=api_key,
            max_items_per_request=max_items_per_request,
            retries=retries,
            transport=transport,
            credentials=credentials,
        )
        self._max_concurrency = exchange.positive("max_concurrency", max_concurrency)

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        await self._carrier.close()

    async def __aenter__(self) -> AsyncPrefillClient:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _run(
        self, options: Options, plan: Callable[..., Plan[AnswerT]], *args: Any, **kwargs: Any
    ) -> AnswerT:
        planned, deadline = self._planned(options, plan, *args, **kwargs)
        slots = asyncio.Semaphore(self._max_concurrency)

        async def ask(request: Request[AnswerT]) -> AnswerT:
            async with slots:  # held during an attempt, not during the wait for the next one
                return await self._ask(request, options, deadline)

        retrying = self._retries.retrying(AsyncRetrying, deadline)
        # One copy for each, because it keeps the state of the call that it repeats.
        tasks: list[asyncio.Future[AnswerT]] = [
            asyncio.ensure_future(retrying.copy()(ask, each)) for each in planned.requests
        ]
        try:
            return planned.join(await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # one has failed, or this call was cancelled
                task.cancel()
