"""The routes whose requests are divided: the router reads the body and writes the answer.

For a request that is not plainly right, or cannot be packed, a route raises `StockPathTaken` or
returns None. Then the router hands the whole request to one engine.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from starlette.requests import Request

from sglang_prefill_ext.attach.carrier import Offer
from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.fleet import classify_api
from sglang_prefill_ext.frontend.embed import embeddings_api
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.embed.embed_frontend import Embedded, EmbedFrontend
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import RequestOptions, opted_out, options_of
from sglang_prefill_ext.frontend.score import rerank, score_body
from sglang_prefill_ext.wire.checks import check_count
from sglang_prefill_ext.wire.stock_reason import StockReason

Answer: TypeAlias = Callable[[bytes, Request], Awaitable[bytes | None]]


class DividedRoutes:
    """The divided routes, for one session with the engines.

    Attributes:
        answers: by path, the function that returns the body of an answer, or None.
    """

    def __init__(self, offer: Offer, session: Session) -> None:
        self._offer = offer
        self._config, self._answers = offer.facts.config, session.path.answers
        self.answers: dict[str, Answer] = {}
        if offer.facts.is_generation:
            self._scoring = session.scoring
            self.answers["/v1/score"] = self._score
            if offer.reranking is not None:
                self._reranker = rerank.Reranker(offer.reranking)
                self.answers["/v1/rerank"] = self._rerank
        else:
            self._embedding = session.embedding
            if offer.encoder is not None:
                path = replace(session.path, encoder=offer.encoder, prefixes=None)
                self._embedding = EmbedFrontend(path)
            if offer.encoder is None or not offer.encoder.makes_numbers:
                self.answers["/v1/embeddings"] = self._embed
            if len(offer.facts.class_names) > 1:
                self.answers["/v1/classify"] = self._classify
            if not offer.shows_times:
                self.answers["/classify"] = self._classify_natively

    async def _score(self, body: bytes, request: Request) -> bytes | None:
        read = score_body.ScoreBody.of(body)
        call = read.call(request)
        if call is None:
            return None
        check_count(call.num_items, self._config)
        scored = await self._scoring.score(call, _options(request))
        write = partial(score_body.answer_body, scored, model=read.model)
        return await self._answers.run_if_large(scored.rows.num_values, write)

    async def _rerank(self, body: bytes, request: Request) -> bytes | None:
        wanted = rerank.read_request(body)
        if wanted is None:
            return None
        options = _options(request)
        call = self._reranker.call(wanted, self._config, request)
        scored = await self._scoring.score(call, options)
        return rerank.answer_body(wanted, scored.scores)

    async def _embed(self, body: bytes, request: Request) -> bytes | None:
        wanted = embeddings_api.read_request(body)
        if wanted is None or wanted.call.dimensions is not None:
            return None  # only the engine knows which dimensions the model allows
        embedded = await self._embedded(wanted.call, request)
        model = self._offer.model_path
        write = partial(
            embeddings_api.answer_body, embedded, as_base64=wanted.as_base64, model=model
        )
        return await self._answers.run_if_large(embedded.numbers, write)

    async def _classify(self, body: bytes, request: Request) -> bytes | None:
        call = classify_api.read_openai(body)
        if call is None:
            return None
        embedded = await self._embedded(call, request)
        names = self._offer.facts.class_names
        if embedded.numbers != len(call.prompts) * len(names):
            return None  # its vectors are no classes
        write = partial(
            classify_api.openai_body, embedded, model=self._offer.served_name, class_names=names
        )
        return await self._answers.run_if_large(embedded.numbers, write)

    async def _classify_natively(self, body: bytes, request: Request) -> bytes | None:
        begun_s = time.time()
        call = classify_api.read_native(body)
        if call is None:
            return None
        embedded = await self._embedded(call, request)
        weights = self._offer.settings["weight version"]
        write = partial(classify_api.native_body, embedded, call, weights=weights, begun_s=begun_s)
        return await self._answers.run_if_large(embedded.numbers, write)

    async def _embedded(self, call: EmbedCall, request: Request) -> Embedded:
        check_count(len(call.prompts), self._config, field="input", noun="prompts")
        return await self._embedding.embed(call, _options(request), request)


def _options(request: Request) -> RequestOptions:
    """Raises: StockPathTaken: the client wants the stock path. RequestError: a wrong header."""
    if opted_out(request.headers):
        raise StockPathTaken(StockReason.OPTED_OUT)
    return options_of(request.headers, now_ms=request.state.came_ms)
