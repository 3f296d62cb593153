"""Serves calls for log-probs and single tokens on the packed path of one front-end process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sglang_prefill_ext.frontend.batch_exchange import BatchExchange, ReadOut
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.frontend.token.first_tokens import FirstTokens
from sglang_prefill_ext.frontend.token.token_batch import ReadKind, pack_calls
from sglang_prefill_ext.frontend.token.token_call import TokenCall, TokenRequest, token_call_of
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.wire.checks import check_memory
from sglang_prefill_ext.wire.stock_reason import StockReason

_MOST_SHARED = 1 << 18
"""Most numbers that a call may read and still share a packed request."""


class TokenFrontend:
    """Serves eligible calls; concurrent ones share packed requests."""

    def __init__(self, path: PackedPath) -> None:
        self.path = path
        self._batches: BatchExchange[TokenCall] = BatchExchange(
            path,
            Worker("prefill-only-tokens"),
            size_of=lambda call: len(call.ids) + call.num_values,
            pack=lambda kind, calls: pack_calls(calls, kind, path.exchange.earlier(path.prefixes)),
            admits=lambda _: False,
        )

    def call_of(
        self,
        request: TokenRequest,
        stop_tokens: Collection[int],
        first: FirstTokens | None = None,
    ) -> TokenCall:
        """Read a request that asks for nothing that this front end cannot give.

        Args:
            stop_tokens, first: see `token_call_of`.

        Raises:
            StockPathTaken: this process does not serve it.
            RequestError: see `check_memory`.
        """
        path = self.path
        path.require_taken()
        call = token_call_of(request, stop_tokens, first)
        if path.watermarks and call.generates:
            raise StockPathTaken(StockReason.WATERMARK)
        path.exchange.require_fitting(len(call.ids))
        check_memory(
            path.config, tokens=len(call.ids), numbers=call.num_values, field="top_logprobs_num"
        )
        return call

    async def read(self, call: TokenCall, options: RequestOptions, request: Any = None) -> ReadOut:
        """Serve a call whose sender is admitted already.

        Args:
            request: of the sender, see `Gatherer.ask`.

        Raises:
            StockPathTaken, PrefillExtError: see `PackedExchange.ask`.
        """
        (read_out,) = await self._ask(ReadKind.of(call), [call], options, request)
        return read_out

    async def read_all(
        self, calls: Sequence[TokenCall], options: RequestOptions, request: Any
    ) -> list[ReadOut]:
        """Admit and serve the calls of one HTTP request, all or none.

        Those with an adapter are admitted already.

        Raises:
            StockPathTaken: they cannot share a batch; or see `PackedExchange.ask`.
            RequestError: see `check_memory`.
            PrefillExtError: see `PackedExchange.ask`.
        """
        numbers = sum(call.num_values for call in calls)
        check_memory(self.path.config, numbers=numbers, field="top_logprobs_num")
        kind, *others = set(map(ReadKind.of, calls))
        if others:
            raise StockPathTaken(StockReason.UNUSUAL_INPUT)
        async with self.path.exchange.admitted(options, request, adapter=kind.adapter):
            return await self._ask(kind, calls, options, request)

    async def _ask(
        self, kind: ReadKind, calls: Sequence[TokenCall], options: RequestOptions, request: Any
    ) -> list[ReadOut]:
        alone = max(call.num_values for call in calls) > _MOST_SHARED
        read_outs = await self._batches.ask(kind, options, list(calls), request, alone=alone)
        self.path.metrics.count_requests("packed", len(calls))
        return read_outs
