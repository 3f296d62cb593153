"""The methods that both clients have: `score`, `embed` and `classify`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import grpc

from sglang_prefill_ext.client import exchange
from sglang_prefill_ext.client.arrays import EmbedOverrides
from sglang_prefill_ext.client.carriers import GrpcCarrier, HttpCarrier
from sglang_prefill_ext.client.kinds import checked
from sglang_prefill_ext.client.options import (
    DEFAULT_OPTIONS,
    DEFAULT_RETRIES,
    Deadline,
    Options,
    Retries,
)
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
from sglang_prefill_ext.errors import ClientError, ConfigError

ScoresT = TypeVar("ScoresT")
VectorsT = TypeVar("VectorsT")
TransportT = TypeVar("TransportT")

_CLOSED = "The client is closed. Make a new one, or close it later."


def _is_cancelled(error: BaseException) -> bool:
    """Whether the caller was cancelled; gRPC raises the same error in calls of a closed channel."""
    task = asyncio.current_task() if isinstance(error, asyncio.CancelledError) else None
    return task is not None and task.cancelling() > 0


def _refuse_unused(scheme: str, transport: object, credentials: object) -> None:
    """Raises: ConfigError: a setting would have no effect, so that calls may go in the clear."""
    unused, wanted = "", ""
    if credentials is not None and scheme != "grpcs":
        unused, wanted = "credentials", "grpcs"
    elif transport is not None and scheme in exchange.GRPC_SCHEMES:
        unused, wanted = "transport", "http"
    if unused:
        raise ConfigError(
            f"{unused}: {scheme}:// does not use it. Leave it out, or ask at {wanted}://."
        )


class Methods(ABC, Generic[ScoresT, VectorsT, TransportT]):
    """The calls of a client, which return answers, or coroutines that do."""

    _kinds: ClassVar[tuple[Any, Any]]
    """httpx's class of the client, and gRPC's module."""

    def __init__(
        self,
        base_url: str = exchange.DEFAULT_URL,
        *,
        api_key: str | None = None,
        max_items_per_request: int = 1000,
        retries: Retries = DEFAULT_RETRIES,
        transport: TransportT | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._max_items = exchange.positive("max_items_per_request", max_items_per_request)
        self._retries = checked("retries", retries, Retries, ConfigError)
        self._closed = False
        http, grpc_kind = self._kinds
        self._carrier: HttpCarrier | GrpcCarrier
        scheme = exchange.address_of(base_url).scheme
        _refuse_unused(scheme, transport, credentials)
        if scheme in exchange.GRPC_SCHEMES:
            self._carrier = GrpcCarrier(grpc_kind, base_url, api_key, credentials)
        else:
            made = exchange.http_client(http, base_url, api_key, transport)
            self._carrier = HttpCarrier(made, base_url)

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
    ) -> ScoresT:
        """Score items for a query.

        Args:
            query: text or token ids that all items share.
            items: texts, or token ids of each; of the same kind as the query.
            label_token_ids: of all items, or one list for each item; None for the classes of a
                classification model.
            apply_softmax: make the probabilities of an item's labels add up to 1.
            item_first: put the query after each item.
            temperature: divides the logits; above 0, and 1 without `apply_softmax`.
            return_token_logprobs: return natural log-probabilities, too.
            embed_overrides: embeddings that replace those of some tokens.
        """
        scores: ScoresT = self._run(
            options,
            plan_score,
            query,
            items,
            label_token_ids,
            apply_softmax=checked("apply_softmax", apply_softmax, bool),
            item_first=checked("item_first", item_first, bool),
            temperature=checked("temperature", temperature, float),
            return_token_logprobs=checked("return_token_logprobs", return_token_logprobs, bool),
            embed_overrides=embed_overrides,
        )
        return scores

    def embed(
        self,
        prompts: Prompts,
        *,
        dimensions: int | None = None,
        adapter: str | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> VectorsT:
        """Embed prompts, float32 ``[prompts, dim]``.

        Args:
            dimensions: shortens Matryoshka embeddings.
            adapter: name of a LoRA adapter of the server; None for the model as it is.
        """
        vectors: VectorsT = self._run(
            options, plan_embed, prompts, dimensions=dimensions, adapter=adapter
        )
        return vectors

    def classify(
        self, prompts: Prompts, *, adapter: str | None = None, options: Options = DEFAULT_OPTIONS
    ) -> VectorsT:
        """Return the class logits (or the rewards) of prompts, float32 ``[prompts, classes]``.

        Args:
            adapter: see `embed`.
        """
        logits: VectorsT = self._run(options, plan_classify, prompts, adapter=adapter)
        return logits

    def _planned(
        self, options: Options, plan: Callable[..., Plan[AnswerT]], *args: Any, **kwargs: Any
    ) -> tuple[Plan[AnswerT], Deadline]:
        """What a call has to send, and until when.

        Raises:
            ClientError: the client is closed.
            RequestError: an argument is of the wrong kind.
        """
        self._require_open()
        timeout_s = checked("options", options, Options).timeout_s
        return plan(*args, max_items=self._max_items, **kwargs), Deadline(timeout_s)

    def _require_open(self) -> None:
        """Raises: ClientError: the client is closed."""
        if self._closed:
            raise ClientError(_CLOSED)

    async def _ask(
        self, request: Request[AnswerT], options: Options, deadline: Deadline
    ) -> AnswerT:
        """Ask once.

        Raises:
            ClientError: the client is closed, or was closed meanwhile.
        """
        self._require_open()
        try:
            return await self._carrier.ask(request, options, deadline)
        except (Exception, asyncio.CancelledError) as error:
            if not self._closed or _is_cancelled(error):
                raise
            raise ClientError(_CLOSED) from error

    @abstractmethod
    def _run(
        self, options: Options, plan: Callable[..., Plan[Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Send the requests that `plan` makes of the arguments and `max_items`; join answers."""
