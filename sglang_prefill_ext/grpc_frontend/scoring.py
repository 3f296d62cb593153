"""Scoring requests: packed here, or handed to the engine as calls."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.overrides.override_pack import pack_overridden
from sglang_prefill_ext.frontend.prompt_batch import lone_prompt
from sglang_prefill_ext.frontend.score.labels import num_labels
from sglang_prefill_ext.frontend.score.scores import flat_scores
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.outcomes import counted
from sglang_prefill_ext.grpc_frontend.questions import CallOptions, ScoreQuestion
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.flat import FlatRows, flat_labels, pack_flat
from sglang_prefill_ext.wire.packed import Int32Array, PackedRows, int_array, values_to_bytes
from sglang_prefill_ext.wire.result import PackedResult
from sglang_prefill_ext.wire.sizes import PromptLengths, check_count, check_memory
from sglang_prefill_ext.wire.stock_reason import StockReason

_DOUBLES = np.dtype("<f8")


class Scoring:
    """Scores for one session with the engine."""

    def __init__(self, session: Session, metrics: FrontendMetrics) -> None:
        self._session = session
        self._metrics = metrics
        self._worker = Worker("prefill-only-pack")

    async def score(self, question: ScoreQuestion, options: CallOptions) -> pb.ScoreResponse:
        """Serve a request.

        Raises:
            PrefillExtError: it is wrong, or ended badly.
        """
        try:
            with counted(self._metrics):
                check_count(len(question.items), self._session.facts.config)
                return await self._packed(question, options)
        except StockPathTaken as stock:
            return await self._by_engine(stock.call or question, options, stock.reason)

    async def _packed(self, question: ScoreQuestion, options: CallOptions) -> pb.ScoreResponse:
        labels = self._require_eligible(question, options)
        exchange, scheduling = self._session.exchange, options.scheduling
        async with exchange.admitted(scheduling):
            encoded = await self._encoded(question)
            try:
                rows = await self._pack(encoded, labels)
                needs_vocabulary = question.return_token_logprobs or not question.apply_softmax
                rows = replace(rows, normalised=needs_vocabulary)
                longest = self._session.facts.config.max_forward_tokens
                rows, scheduling = lone_prompt(rows, scheduling, self._session.prefixes, longest)
                answer = await exchange.ask(rows, scheduling, None)
            except StockPathTaken as taken:  # the engine need not encode texts again
                raise StockPathTaken(taken.reason, encoded) from None
        self._metrics.record_packed()
        self._metrics.record_work(rows, answer.forwards, answer.tokens_computed)
        return _response(question, rows, answer)

    async def _by_engine(
        self, question: ScoreQuestion, options: CallOptions, reason: StockReason
    ) -> pb.ScoreResponse:
        answer = await self._session.stock_scores(question.arguments(), options.headers())
        logprobs = answer.token_logprobs
        return pb.ScoreResponse(
            scores=np.array([x for row in answer.rows for x in row], _DOUBLES).tobytes(),
            counts=int_array([len(row) for row in answer.rows]).tobytes(),
            token_logprobs=np.array([x for row in logprobs or () for x in row], "<f4").tobytes(),
            usage=pb.Usage(prompt_tokens=answer.prompt_tokens, path=pb.PATH_ENGINE, reason=reason),
        )

    def _require_eligible(
        self, question: ScoreQuestion, options: CallOptions
    ) -> tuple[Int32Array, Int32Array]:
        """Return ``(label_ids, label_lens)`` of `PackedRows`.

        Raises:
            StockPathTaken: the engine is to serve the call, in its own way.
        """
        if reason := self._declined(question, options):
            raise StockPathTaken(reason)
        known = self._session.facts.label_vocab_size
        labels = flat_labels(question.labels, len(question.items), known)
        if labels is None:
            raise StockPathTaken(StockReason.UNUSUAL_INPUT)
        return labels

    def _declined(self, question: ScoreQuestion, options: CallOptions) -> StockReason | None:
        if options.stock:
            return StockReason.OPTED_OUT
        if not self._session.facts.is_generation:
            return StockReason.NOT_GENERATION
        if isinstance(question.items, list) and not self._session.has_tokenizer:
            return StockReason.NO_TOKENIZER
        if question.overrides is not None and question.item_first:
            return StockReason.UNUSUAL_INPUT
        heat = question.temperature
        if not (math.isfinite(heat) and heat > 0 and (question.apply_softmax or heat == 1.0)):
            return StockReason.UNUSUAL_INPUT
        return self._session.exchange.declined_reason

    async def _encoded(self, question: ScoreQuestion) -> ScoreQuestion:
        """Return a question of plain texts as one of ids; any other as it is."""
        if not isinstance(question.query, str) or question.overrides is not None:
            return question
        encode = partial(self._session.encode_joined, item_first=question.item_first)
        shared, rest = await self._worker.run(encode, question.query, question.items)
        return replace(question, query=shared, items=rest)

    async def _pack(
        self, question: ScoreQuestion, labels: tuple[Int32Array, Int32Array]
    ) -> PackedRows:
        query, items, facts = question.query, question.items, self._session.facts
        numbers = num_labels(labels, len(items))
        if question.overrides is not None:
            check_memory(facts.config, numbers=numbers)
            known = (self._session.encode, facts.vocab_size, facts.embeddings, facts.config)
            return await self._worker.run(pack_overridden, question.call(), labels, *known)
        assert isinstance(items, FlatRows), "texts are encoded"
        assert not isinstance(query, str), "query and items are alike"
        lengths = PromptLengths.of(query, items)
        if lengths.longest_prompt > facts.longest_prompt:
            raise StockPathTaken(StockReason.PROMPT_TOO_LONG)
        tokens = lengths.packed(repeats_query=question.item_first)
        check_memory(facts.config, tokens=tokens, numbers=numbers)
        args = (query, items, question.item_first, labels, facts.vocab_size)
        return await self._worker.run_if_large(tokens, pack_flat, *args)


def _response(question: ScoreQuestion, rows: PackedRows, answer: PackedResult) -> pb.ScoreResponse:
    values = answer.row_values()
    scores = flat_scores(
        values, rows, apply_softmax=question.apply_softmax, temperature=question.temperature
    )
    _, counts = rows.labels_of(0, rows.num_reads)
    return pb.ScoreResponse(
        scores=scores.astype(_DOUBLES).tobytes(),
        counts=counts.tobytes(),
        token_logprobs=values_to_bytes(values) if question.return_token_logprobs else b"",
        usage=pb.Usage(
            prompt_tokens=rows.num_prompt_tokens,
            computed_tokens=answer.tokens_computed,
            cached_tokens=min(answer.tokens_cached, rows.prefix_len),
            path=pb.PATH_PACKED,
        ),
    )
