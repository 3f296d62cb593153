"""Calls for vectors on the packed path of one front-end process: embeddings, classes, rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.batch_exchange import BatchExchange, ReadOut, read_outs
from sglang_prefill_ext.frontend.call_stats import Served, served_prompts
from sglang_prefill_ext.frontend.client_wait import within
from sglang_prefill_ext.frontend.embed.embed_call import (
    EmbedCall,
    EncoderTraits,
    embed_call_of,
    ineligible_embed_reason,
)
from sglang_prefill_ext.frontend.embed.prompt_encoder import PromptEncoder
from sglang_prefill_ext.frontend.exchange import PackedExchange, StockPathTaken
from sglang_prefill_ext.frontend.gather import Gatherer
from sglang_prefill_ext.frontend.link import SchedulerLink
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.overrides.override_pack import place_of_vectors
from sglang_prefill_ext.frontend.prompt_batch import pack_prompts, pack_read_places
from sglang_prefill_ext.frontend.score.scores import table_rows
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.overrides import NO_OVERRIDES, EmbeddingKind, OverrideArray
from sglang_prefill_ext.wire.packed import (
    VECTOR_AND_STATE,
    WHOLE_VECTOR,
    Float32Array,
    Int32Array,
)
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy
from sglang_prefill_ext.wire.sizes import check_count, check_memory
from sglang_prefill_ext.wire.stock_reason import StockReason


@dataclass(frozen=True, slots=True)
class Embedded:
    """The result of a packed call.

    Attributes:
        vectors: one a prompt; a list of them, where places were asked for; a number, where the
            model makes no more.
        served: what there was to compute.
        numbers: of all vectors.
        states: the hidden state behind every vector, float32 ``[hidden]`` or ``[places, hidden]``;
            None where they were not asked for, or the model shows none.
    """

    vectors: list[Any]
    served: Served
    numbers: int
    states: list[Float32Array] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Overridden:
    """The embeddings of one call, whose prompts number them and so go without others'."""

    table: OverrideArray


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the calls of one batch have in common; two with deadlines never have."""

    options: RequestOptions
    vector_width: int
    overridden: _Overridden | None = None
    adapter: str = ""


class EmbedFrontend:
    """Serves eligible calls for vectors; concurrent ones share packed requests.

    Args:
        vocab_size: rows of the embedding table; prompt ids must lie below.
        embeddings: of the model.
        prefixes: see `shared_beginnings`.
        reads_places: see `ineligible_embed_reason`.
        encoder: None where the model is none.

    Attributes:
        answers: makes objects and texts of large answers.
    """

    def __init__(
        self,
        link: SchedulerLink,
        exchange: PackedExchange,
        config: PrefillOnlyConfig,
        metrics: FrontendMetrics,
        *,
        vocab_size: int,
        embeddings: EmbeddingKind,
        has_tokenizer: bool,
        prefixes: PrefixPolicy | None,
        reads_places: bool,
        encoder: EncoderTraits | None = None,
    ) -> None:
        self._exchange = exchange
        self.metrics = metrics
        self._embeddings = embeddings
        self._config = config
        self._prefixes = prefixes
        self._reads_places = reads_places
        self._is_encoder = encoder is not None
        self.makes_numbers = encoder is not None and encoder.makes_numbers
        self._worker = Worker("prefill-only-embed")
        self.answers = Worker("prefill-only-answers")
        self.encoder = PromptEncoder(
            *(link, config, metrics, self._worker),
            vocab_size=vocab_size,
            has_tokenizer=has_tokenizer,
            token_types=1 if encoder is None else encoder.token_types,
        )
        most, wait_s = config.gather_rows, config.gather_ms / 1e3
        self._batches: BatchExchange[Int32Array] = BatchExchange(
            exchange, metrics, self._worker, most_retried=2 * most, size_of=len
        )
        self._prompts = Gatherer(self._ask, max_items=most, max_wait_s=wait_s)

    def call_of(self, request: Any) -> EmbedCall:
        """Read an `EmbeddingReqInput`.

        Raises:
            StockPathTaken: it is not eligible.
        """
        reason = ineligible_embed_reason(request, reads_places=self._reads_places)
        if reason is not None:
            raise StockPathTaken(reason)
        return embed_call_of(request)

    def check_limits(self, num_prompts: int, *, field: str) -> None:
        """Refuse too many prompts, on either path.

        Args:
            field: what the user calls them.

        Raises:
            TooManyItemsError: more than `max_items`.
        """
        check_count(num_prompts, self._config, field=field, noun="prompts")

    async def embed(self, call: EmbedCall, options: RequestOptions, request: Any) -> Embedded:
        """Serve a call.

        Args:
            request: of the client, see `PackedExchange.ask`.

        Raises:
            RequestError: the call is wrong, or too large (see `check_memory`).
            StockPathTaken, PrefillExtError: see `PackedExchange.ask`.
        """
        if self._exchange.declined_reason:
            raise StockPathTaken(self._exchange.declined_reason)
        if self._is_encoder and call.has_overrides:
            raise StockPathTaken(StockReason.EMBED_OVERRIDES)
        async with within(options.deadline_ms, "before its prompts were encoded"):
            prompts = await self.encoder.token_ids(call, request)
        placed, table = prompts, NO_OVERRIDES
        if call.has_overrides:
            args = (call, prompts, self._embeddings)
            placed, table = await self._worker.run(place_of_vectors, *args)
        width = call.dimensions or (VECTOR_AND_STATE if call.with_states else WHOLE_VECTOR)
        asked = (placed, width, options, request, table, call.adapter)
        try:
            if call.places is None:
                read_outs = await self.vectors(*asked)
            else:
                read_outs = await self._vectors_at(call.places, *asked)
        except StockPathTaken as taken:
            raise StockPathTaken(taken.reason, _with_ids(call, prompts)) from None
        tables, states = [each.table for each in read_outs], None
        # Without a head that made vectors there are no states.
        hidden_size = self._embeddings.width
        if call.with_states and tables[0].shape[-1] > hidden_size:
            states = [table[..., -hidden_size:] for table in tables]
            tables = [table[..., :-hidden_size] for table in tables]
        numbers = sum(table.size for table in tables)
        vectors = await self.answers.run_if_large(numbers, self._listed, tables)
        served = served_prompts(list(map(len, prompts)), read_outs)
        return Embedded(vectors, served, numbers, states)

    def _listed(self, tables: list[Float32Array]) -> list[Any]:
        """See `Embedded.vectors`."""
        if self.makes_numbers:
            return [table.item() for table in tables]
        return [table.tolist() if table.ndim == 1 else table_rows(table) for table in tables]

    async def _vectors_at(
        self,
        places: list[list[int]],
        prompts: list[Int32Array],
        width: int,
        options: RequestOptions,
        request: Any,
        overrides: OverrideArray,
        adapter: str,
    ) -> list[ReadOut]:
        """Return the vectors at places of each prompt, float32 ``[places, width]``.

        Such a call is a scoring request, large enough to go alone. Arguments and errors are those
        of `vectors`.
        """
        numbers = sum(map(len, places)) * self._embeddings.width
        check_memory(self._config, numbers=numbers, field="token_indices_to_pool")
        args = (prompts, places, width, overrides, adapter)
        async with self._exchange.admitted(options, request):
            rows = await self._worker.run(pack_read_places, *args)
            answer = await self._exchange.ask(rows, options, request)
        self.metrics.record_packed()
        self.metrics.record_work(rows, answer.forwards, answer.tokens_computed)
        ends = np.cumsum(list(map(len, places)))
        tables = np.split(answer.row_values().reshape(int(ends[-1]), -1), ends[:-1])
        return read_outs(tables, rows, answer)

    async def vectors(
        self,
        prompts: list[Int32Array],
        width: int,
        options: RequestOptions,
        request: Any,
        overrides: OverrideArray = NO_OVERRIDES,
        adapter: str = "",
    ) -> list[ReadOut]:
        """Return a vector of each prompt, float32 ``[width]``; the errors are those of `embed`.

        Args:
            prompts: none is empty, all ids lie in the vocabulary, or name one of `overrides`.
            width: leading numbers of each vector, or `WHOLE_VECTOR` or `VECTOR_AND_STATE`.
            adapter: see `PackedRows`.
        """
        self._exchange.require_fitting(max(map(len, prompts)))
        overridden = _Overridden(overrides) if len(overrides) else None
        kind = _Kind(options, width, overridden, adapter)
        read_outs = await self._prompts.ask(kind, prompts, request)
        self.metrics.record_packed()
        return read_outs

    async def _ask(self, kind: _Kind, prompts: list[Int32Array]) -> Sequence[ReadOut | Exception]:
        """Ask the scheduler for the vectors of several calls."""
        pack = partial(
            pack_prompts,
            vector_width=kind.vector_width,
            overrides=NO_OVERRIDES if kind.overridden is None else kind.overridden.table,
            adapter=kind.adapter,
            policy=self._prefixes,
        )
        async with self._exchange.admitted(kind.options):
            return await self._batches.ask(prompts, kind.options, pack)


def _with_ids(call: EmbedCall, prompts: list[Int32Array]) -> EmbedCall | None:
    """Return a call of texts with their ids; None of others, also of pairs of texts.

    SGLang wants more of a pair than its ids.
    """
    if not isinstance(call.prompts[0], str):
        return None
    return replace(call, prompts=[prompt.tolist() for prompt in prompts])
