"""Serves calls for vectors (embeddings, classes, rewards) on the packed path of a front end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sglang_prefill_ext.frontend.answers import Served, table_rows
from sglang_prefill_ext.frontend.batch_exchange import (
    BatchExchange,
    ReadOut,
    read_outs,
    served_prompts,
)
from sglang_prefill_ext.frontend.client_wait import within
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall, PromptEncoder, place_of_vectors
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.frontend.prompt_batch import PackedGroup, pack_prompts, pack_read_places
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.wire.arrays import NO_OVERRIDES, Float32Array, Int32Array, OverrideArray
from sglang_prefill_ext.wire.checks import check_memory
from sglang_prefill_ext.wire.read import VECTOR_AND_STATE, WHOLE_VECTOR
from sglang_prefill_ext.wire.stock_reason import StockReason


@dataclass(frozen=True, slots=True)
class Embedded:
    """The result of a packed call.

    Attributes:
        vectors: for each prompt a vector; or a list of them, if places were asked for; or a number,
            if the model makes only one.
        served: token counts and times.
        numbers: how many numbers all vectors have.
        states: the hidden state of every vector, float32 ``[hidden]`` or ``[places, hidden]``; None
            if they were not asked for, or the model has no head that makes the vectors.
    """

    vectors: list[Any]
    served: Served
    numbers: int
    states: list[Float32Array] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Overridden:
    """The embeddings of one call.

    The ids in its prompts are indices into this table, so the call shares no batch with others.
    """

    table: OverrideArray


_NONE = _Overridden(NO_OVERRIDES)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the calls of one batch have in common, see `pack_prompts`."""

    vector_width: int
    overridden: _Overridden
    adapter: str


class EmbedFrontend:
    """Serves eligible calls for vectors; concurrent ones share packed requests."""

    def __init__(self, path: PackedPath) -> None:
        self.path = path
        self.makes_numbers = path.encoder is not None and path.encoder.makes_numbers
        self._worker = Worker("prefill-only-embed")
        self.encoder = PromptEncoder(path, self._worker)
        self._batches: BatchExchange[Int32Array] = BatchExchange(
            *(path, self._worker),
            size_of=len,
            pack=self._pack,
            admits=lambda kind: not kind.adapter,
        )

    async def embed(self, call: EmbedCall, options: RequestOptions, request: Any) -> Embedded:
        """Serve a call; one with an adapter is admitted already.

        Args:
            request: of the client, see `PackedExchange.ask`.

        Raises:
            RequestError: the call is wrong, or too large (see `check_memory`).
            StockPathTaken, PrefillExtError: see `PackedExchange.ask`.
        """
        self.path.require_taken()
        if self.path.encoder is not None and call.has_overrides:
            raise StockPathTaken(StockReason.EMBED_OVERRIDES)
        async with within(options.deadline_ms, "before its prompts were encoded"):
            prompts = await self.encoder.token_ids(call, request)
        placed, table = prompts, NO_OVERRIDES
        if call.has_overrides:
            args = (call, prompts, self.path.embeddings)
            placed, table = await self._worker.run(place_of_vectors, *args)
        width = call.dimensions or (VECTOR_AND_STATE if call.with_states else WHOLE_VECTOR)
        asked = placed, width, options, request
        try:
            read_outs = await self.vectors(
                *asked, overrides=table, adapter=call.adapter, places=call.places
            )
        except StockPathTaken as taken:
            raise StockPathTaken(taken.reason, _with_ids(call, prompts)) from None
        tables, states = [each.table for each in read_outs], None
        # Without a head that made vectors there are no states. An encoder never gives them, but its
        # head may have more classes than a state has numbers.
        hidden_size = self.path.embeddings.width
        has_states = self.path.encoder is None and tables[0].shape[-1] > hidden_size
        if call.with_states and has_states:
            states = [table[..., -hidden_size:] for table in tables]
            tables = [table[..., :-hidden_size] for table in tables]
        numbers = sum(table.size for table in tables)
        vectors = await self.path.answers.run_if_large(numbers, self._listed, tables)
        served = served_prompts(list(map(len, prompts)), read_outs)
        return Embedded(vectors, served, numbers, states)

    def _listed(self, tables: list[Float32Array]) -> list[Any]:
        """Convert tables to `Embedded.vectors`."""
        if self.makes_numbers:
            return [table.item() for table in tables]
        return [table.tolist() if table.ndim == 1 else table_rows(table) for table in tables]

    async def vectors(
        self,
        prompts: list[Int32Array],
        width: int,
        options: RequestOptions,
        request: Any,
        *,
        overrides: OverrideArray = NO_OVERRIDES,
        adapter: str = "",
        places: list[list[int]] | None = None,
    ) -> list[ReadOut]:
        """Return a vector of each prompt, float32 ``[width]``; the errors are those of `embed`.

        Args:
            prompts: none is empty; all ids lie in the vocabulary, or name one of `overrides`.
            width: how many leading numbers of each vector, or `WHOLE_VECTOR` or `VECTOR_AND_STATE`.
            adapter: see `PackedRows`.
            places: see `EmbedCall`; with these, ``[places, width]`` of each prompt.
        """
        if places is None:
            self.path.exchange.require_fitting(max(map(len, prompts)))
            kind = _Kind(width, _Overridden(overrides) if len(overrides) else _NONE, adapter)
            found = await self._batches.ask(kind, options, prompts, request)
        else:  # one packed request, like a scoring call, and large enough to share no batch
            lens = list(map(len, places))
            numbers = sum(lens) * self.path.embeddings.width
            check_memory(self.path.config, numbers=numbers, field="token_indices_to_pool")
            args = (prompts, places, width, overrides, adapter)
            exchange = self.path.exchange
            async with exchange.admitted(options, request, adapter=adapter):
                rows = await self._worker.run(pack_read_places, *args)
                answer = await exchange.ask(rows, options, request)
            self.path.metrics.record_work(rows, answer)
            values = answer.row_values().reshape(sum(lens), -1)
            found = read_outs(np.split(values, np.cumsum(lens)[:-1]), rows, answer)
        self.path.metrics.count_requests("packed")
        return found

    def _pack(self, kind: _Kind, prompts: list[Int32Array]) -> list[PackedGroup]:
        table, policy = kind.overridden.table, self.path.exchange.earlier(self.path.prefixes)
        return pack_prompts(prompts, kind.vector_width, table, adapter=kind.adapter, policy=policy)


def _with_ids(call: EmbedCall, prompts: list[Int32Array]) -> EmbedCall | None:
    """Return a call of texts with their ids in their place; None for other calls.

    Calls of pairs of texts are others, because SGLang needs more of a pair than its ids.
    """
    if not isinstance(call.prompts[0], str):
        return None
    return replace(call, prompts=[prompt.tolist() for prompt in prompts])
