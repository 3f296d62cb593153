"""Calls for vectors on the packed path of one front-end process: embeddings, classes, rewards."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sglang_prefill_ext.frontend.embed_call import (
    EmbedCall,
    embed_call_of,
    ineligible_embed_reason,
)
from sglang_prefill_ext.frontend.exchange import PackedExchange, StockPathTaken
from sglang_prefill_ext.frontend.link import SchedulerLink
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.pack import pack_rows
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.packed import WHOLE_VECTOR, PackedRows, int_array

# Calls with more prompt tokens than this are packed in a worker thread.
_INLINE_TOKENS = 20_000

_NO_LABELS = int_array([])


@dataclass(frozen=True, slots=True)
class Embedded:
    """The result of a packed call.

    Attributes:
        vectors: one a prompt.
        prompt_tokens: of every prompt.
    """

    vectors: list[list[float]]
    prompt_tokens: list[int]


class EmbedFrontend:
    """Serves eligible calls for vectors.

    Args:
        vocab_size: rows of the embedding table; prompt ids must lie below.
    """

    def __init__(
        self,
        link: SchedulerLink,
        exchange: PackedExchange,
        metrics: FrontendMetrics,
        *,
        vocab_size: int,
        has_tokenizer: bool,
    ) -> None:
        self._link = link
        self._exchange = exchange
        self.metrics = metrics
        self._vocab_size = vocab_size
        self._has_tokenizer = has_tokenizer
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefill-only-embed")

    def call_of(self, request: Any) -> EmbedCall:
        """Read an `EmbeddingReqInput`.

        Raises:
            StockPathTaken: it is not eligible.
        """
        reason = self._exchange.declined_reason or ineligible_embed_reason(request)
        if reason is None:
            call = embed_call_of(request)
            if self._has_tokenizer or not call.is_text:
                return call
            reason = "no_tokenizer"
        raise StockPathTaken(reason)

    async def embed(self, call: EmbedCall, options: RequestOptions, request: Any) -> Embedded:
        """Serve a call with one packed request.

        Args:
            request: of the client, see `PackedExchange.ask`.

        Raises:
            RequestError: the call is wrong.
            StockPathTaken, PrefillExtError: see `PackedExchange.ask`.
        """
        async with self._exchange.admitted(options):
            rows = await self._pack(call)
            answer = await self._exchange.ask(rows, options, request)
        self.metrics.record_packed(rows, answer.forwards, answer.tokens_computed)
        vectors = answer.row_values().reshape(rows.num_rows, -1).tolist()
        return Embedded(vectors, (rows.suffix_lens + rows.prefix_len).tolist())

    async def _pack(self, call: EmbedCall) -> PackedRows:
        if call.is_text or sum(map(len, call.prompts)) > _INLINE_TOKENS:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._worker, self._encode_and_pack, call)
        return self._encode_and_pack(call)

    def _encode_and_pack(self, call: EmbedCall) -> PackedRows:
        ids = self._link.encode(call.prompts) if call.is_text else call.prompts
        return pack_rows(
            ids,
            (_NO_LABELS, _NO_LABELS),
            self._vocab_size,
            field="text" if call.is_text else "input_ids",
            vector_width=call.dimensions or WHOLE_VECTOR,
        )
