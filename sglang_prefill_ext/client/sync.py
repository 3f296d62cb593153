"""The client for threads."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
import numpy as np
from numpy.typing import NDArray
from tenacity import Retrying

from sglang_prefill_ext.client import exchange
from sglang_prefill_ext.client.answers import Scores
from sglang_prefill_ext.client.grpc_carriers import GrpcCarrier
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
        self, base_url: str, api_key: str | None, transport: httpx.BaseTransport | None
    ) -> None:
        self._base_url = base_url
        settings = exchange.settings(base_url, api_key, transport, httpx.HTTPTransport)
        self._http = httpx.Client(**settings)
        self._arrays = False  # until the server says that it reads them

    def ask(self, request: Request[AnswerT], options: Options, deadline: Deadline) -> AnswerT:
        def arguments(arrays: bool) -> dict[str, Any]:
            return exchange.arguments(request, options, deadline, arrays=arrays)

        arrays = self._arrays
        with exchange.transport_errors(request, self._base_url):
            response = self._http.post(**arguments(arrays))
            if arrays and exchange.may_lack_arrays(response):
                # Another server may have taken the place of the one that reads arrays.
                self._arrays = False
                response = self._http.post(**arguments(arrays=False))
        self._arrays |= exchange.reads_arrays(response)
        return exchange.answer_to(request, response)

    def close(self) -> None:
        self._http.close()


class PrefillClient:
    """Asks one server; threads may share it. Close it, or use it in a ``with`` statement.

    Args:
        base_url: where the server is: ``http://`` or ``https://``, or ``grpc://`` or ``grpcs://``
            (TLS) for gRPC front ends.
        api_key: sent as ``Authorization: Bearer``.
        max_items_per_request: longer lists are sent in parts, one after the other.
        retries: when a request is repeated.
        transport: what carries HTTP requests instead of the network.
        credentials: of ``grpcs://``, a `grpc.ChannelCredentials`; None trusts known authorities.

    Every method raises:
        RequestError: an argument is of the wrong kind; nothing was sent.
        ServerRefusedError: the server refused the request, or failed at it.
        ServerBusyError: too much waits there, also after the repeats.
        ServerUnavailableError: no connection, or HTTP 503, also after the repeats.
        DeadlineExceededError: no answer within `Options.timeout_s`.
        UnexpectedAnswerError: what answers is not an SGLang server.
    """

    def __init__(
        self,
        base_url: str = exchange.DEFAULT_URL,
        *,
        api_key: str | None = None,
        max_items_per_request: int = 1000,
        retries: Retries = DEFAULT_RETRIES,
        transport: httpx.BaseTransport | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._max_items = exchange.positive("max_items_per_request", max_items_per_request)
        self._retries = retries
        self._carrier: GrpcCarrier | _HttpCarrier
        if base_url.startswith(exchange.GRPC_SCHEMES):
            self._carrier = GrpcCarrier(base_url, api_key, credentials)
        else:
            self._carrier = _HttpCarrier(base_url, api_key, transport)

    def score(
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
        """Score items for a query.

        Args:
            query: text or token ids that all items share.
            items: texts, or token ids of each.
            label_token_ids: of all items, or one list for each item; None for the classes of a
                classification model.
            apply_softmax: make the probabilities of an item's labels add up to 1.
            item_first: put the query behind each item.
            temperature: divides the logits; above 0, and 1 without `apply_softmax`.
            return_token_logprobs: return natural log-probabilities, too.
            embed_overrides: embeddings in place of some tokens'.
        """
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
        return self._run(plan, options)

    def embed(
        self,
        prompts: Prompts,
        *,
        dimensions: int | None = None,
        adapter: str | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> NDArray[np.float32]:
        """Embed prompts, ``[prompts, dim]``.

        Args:
            dimensions: shortens Matryoshka embeddings.
            adapter: name of a LoRA adapter of the server; None for the model as it is.
        """
        plan = plan_embed(
            prompts, max_items=self._max_items, dimensions=dimensions, adapter=adapter
        )
        return self._run(plan, options)

    def classify(
        self,
        prompts: Prompts,
        *,
        adapter: str | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> NDArray[np.float32]:
        """Return the class logits (or the rewards) of prompts, ``[prompts, classes]``.

        Args:
            adapter: see `embed`.
        """
        plan = plan_classify(prompts, max_items=self._max_items, adapter=adapter)
        return self._run(plan, options)

    def close(self) -> None:
        """Close all connections."""
        self._carrier.close()

    def __enter__(self) -> PrefillClient:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _run(self, plan: Plan[AnswerT], options: Options) -> AnswerT:
        deadline = Deadline(options.timeout_s)

        def ask(request: Request[AnswerT]) -> AnswerT:
            return self._carrier.ask(request, options, deadline)

        retrying = self._retries.retrying(Retrying, deadline)
        return plan.join([retrying(ask, request) for request in plan.requests])
