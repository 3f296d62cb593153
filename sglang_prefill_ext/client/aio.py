"""The client for asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import httpx
import numpy as np
from numpy.typing import NDArray
from tenacity import AsyncRetrying

from sglang_prefill_ext.client import exchange
from sglang_prefill_ext.client.answers import Scores
from sglang_prefill_ext.client.grpc_carriers import AsyncGrpcCarrier
from sglang_prefill_ext.client.options import DEFAULT_OPTIONS, Deadline, Options
from sglang_prefill_ext.client.overrides import EmbedOverrides
from sglang_prefill_ext.client.requests import (
    AnswerT,
    Labels,
    Plan,
    Prompt,
    Prompts,
    Request,
    plan_classify,
    plan_embed,
    plan_score,
)
from sglang_prefill_ext.client.retry import DEFAULT_RETRIES, Retries


class _HttpCarrier:
    """Asks by HTTP."""

    def __init__(
        self, base_url: str, api_key: str | None, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self._base_url = base_url
        settings = exchange.settings(base_url, api_key, transport, httpx.AsyncHTTPTransport)
        self._http = httpx.AsyncClient(**settings)
        self._arrays = False  # until the server says that it reads them

    async def ask(self, request: Request[AnswerT], options: Options, deadline: Deadline) -> AnswerT:
        def arguments(arrays: bool) -> dict[str, Any]:
            return exchange.arguments(request, options, deadline, arrays=arrays)

        arrays = self._arrays
        with exchange.transport_errors(request, self._base_url):
            response = await self._http.post(**arguments(arrays))
            if arrays and exchange.may_lack_arrays(response):
                # Another server may have taken the place of the one that reads arrays.
                self._arrays = False
                response = await self._http.post(**arguments(arrays=False))
        self._arrays |= exchange.reads_arrays(response)
        return exchange.answer_to(request, response)

    async def close(self) -> None:
        await self._http.aclose()


class AsyncPrefillClient:
    """`PrefillClient` with coroutines: same arguments, answers and errors.

    Args:
        max_concurrency: most requests of one call at a time, when its list is sent in parts.
    """

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
        self._max_items = exchange.positive("max_items_per_request", max_items_per_request)
        self._max_concurrency = exchange.positive("max_concurrency", max_concurrency)
        self._retries = retries
        self._carrier: AsyncGrpcCarrier | _HttpCarrier
        if base_url.startswith(exchange.GRPC_SCHEMES):
            self._carrier = AsyncGrpcCarrier(base_url, api_key, credentials)
        else:
            self._carrier = _HttpCarrier(base_url, api_key, transport)

    async def score(
        self,
        query: Prompt,
        items: Prompts,
        label_token_ids: Labels | None = None,
        *,
        apply_softmax: bool = True,
        item_first: bool = False,
        temperature: float = 1.0,
        return_token_logprobs: bool = False,
        embed_overrides: EmbedOverrides | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> Scores:
        """Score items for a query, as `PrefillClient.score` does."""
        plan = plan_score(
            query,
            items,
            label_token_ids,
            max_items=self._max_items,
            apply_softmax=apply_softmax,
            item_first=item_first,
            temperature=temperature,
            return_token_logprobs=return_token_logprobs,
            embed_overrides=embed_overrides,
        )
        return await self._run(plan, options)

    async def embed(
        self,
        prompts: Prompts,
        *,
        dimensions: int | None = None,
        adapter: str | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> NDArray[np.float32]:
        """Embed prompts, as `PrefillClient.embed` does."""
        plan = plan_embed(
            prompts, max_items=self._max_items, dimensions=dimensions, adapter=adapter
        )
        return await self._run(plan, options)

    async def classify(
        self,
        prompts: Prompts,
        *,
        adapter: str | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> NDArray[np.float32]:
        """Return the class logits (or the rewards) of prompts, ``[prompts, classes]``."""
        plan = plan_classify(prompts, max_items=self._max_items, adapter=adapter)
        return await self._run(plan, options)

    async def close(self) -> None:
        """Close all connections."""
        await self._carrier.close()

    async def __aenter__(self) -> AsyncPrefillClient:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _run(self, plan: Plan[AnswerT], options: Options) -> AnswerT:
        deadline = Deadline(options.timeout_s)
        slots = asyncio.Semaphore(self._max_concurrency)

        async def ask(request: Request[AnswerT]) -> AnswerT:
            async with slots:  # not while it waits for a repeat
                return await self._carrier.ask(request, options, deadline)

        retrying = self._retries.retrying(AsyncRetrying, deadline)
        # A copy each: the loop keeps the state of the call that it makes.
        tasks: list[asyncio.Future[AnswerT]] = [
            asyncio.ensure_future(retrying.copy()(ask, each)) for each in plan.requests
        ]
        try:
            return plan.join(await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # one failed, or nobody waits any more
                task.cancel()
