"""Calls for log-probs and single tokens on the packed path of one front-end process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.batch_exchange import BatchExchange, ReadOut
from sglang_prefill_ext.frontend.exchange import PackedExchange, StockPathTaken
from sglang_prefill_ext.frontend.gather import Gatherer
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.token.token_batch import ReadKind, pack_calls
from sglang_prefill_ext.frontend.token.token_call import (
    TokenCall,
    TokenRequest,
    ineligible_token_reason,
    token_call_of,
)
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy
from sglang_prefill_ext.wire.sizes import check_memory
from sglang_prefill_ext.wire.stock_reason import StockReason

_MOST_SHARED = 1 << 18
"""Numbers that are read for a call which may share a packed request."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the calls of one batch have in common; two with deadlines never have."""

    options: RequestOptions
    reads: ReadKind


class TokenFrontend:
    """Serves eligible calls; concurrent ones share packed requests.

    Args:
        prefixes: see `shared_beginnings`.
        watermarks: SGLang marks generated tokens, also of requests that do not ask for it.

    Attributes:
        answers: makes objects and texts of large answers.
    """

    def __init__(
        self,
        exchange: PackedExchange,
        config: PrefillOnlyConfig,
        metrics: FrontendMetrics,
        *,
        prefixes: PrefixPolicy | None,
        watermarks: bool,
    ) -> None:
        self.metrics = metrics
        self._exchange = exchange
        self._prefixes = prefixes
        self._watermarks = watermarks
        most, wait_s = config.gather_rows, config.gather_ms / 1e3
        self._config = config
        self.answers = Worker("prefill-only-answers")
        self._batches: BatchExchange[TokenCall] = BatchExchange(
            *(exchange, metrics, Worker("prefill-only-tokens")),
            most_retried=2 * most,
            size_of=lambda call: len(call.ids) + call.num_values,
        )
        self._calls = Gatherer(self._serve, max_items=most, max_wait_s=wait_s)

    def call_of(self, request: Any, stop_tokens: Collection[int]) -> TokenCall:
        """Read a tokenized request.

        Args:
            stop_tokens: see `token_call_of`.

        Raises:
            StockPathTaken: it is not eligible.
            RequestError: see `check_memory`.
        """
        self._require_taken()
        reason = ineligible_token_reason(request)
        if reason:
            raise StockPathTaken(reason)
        return self.plain_call_of(request, stop_tokens)

    def plain_call_of(self, request: TokenRequest, stop_tokens: Collection[int]) -> TokenCall:
        """Read a request of which nothing else is wanted.

        Args:
            stop_tokens: see `token_call_of`.

        Raises:
            StockPathTaken: this process does not serve it.
            RequestError: see `check_memory`.
        """
        self._require_taken()
        call = token_call_of(request, stop_tokens)
        if self._watermarks and call.generates:
            raise StockPathTaken(StockReason.WATERMARK)
        self._exchange.require_fitting(len(call.ids))
        check_memory(
            self._config, tokens=len(call.ids), numbers=call.num_values, field="top_logprobs_num"
        )
        return call

    async def read(self, call: TokenCall, options: RequestOptions) -> ReadOut:
        """Serve a call whose sender is admitted already.

        Raises:
            StockPathTaken, PrefillExtError: see `PackedExchange.ask`.
        """
        (read_out,) = await self._ask(ReadKind.of(call), [call], options, None)
        return read_out

    async def read_all(
        self, calls: Sequence[TokenCall], options: RequestOptions, request: Any
    ) -> list[ReadOut]:
        """Admit and serve the calls of one HTTP request, all or none.

        Raises:
            StockPathTaken: they cannot share a batch; or see `PackedExchange.ask`.
            RequestError: see `check_memory`.
            PrefillExtError: see `PackedExchange.ask`.
        """
        numbers = sum(call.num_values for call in calls)
        check_memory(self._config, numbers=numbers, field="top_logprobs_num")
        kind, *others = set(map(ReadKind.of, calls))
        if others:
            raise StockPathTaken(StockReason.UNUSUAL_INPUT)
        async with self._exchange.admitted(options, request):
            return await self._ask(kind, calls, options, request)

    async def _ask(
        self, kind: ReadKind, calls: Sequence[TokenCall], options: RequestOptions, request: Any
    ) -> list[ReadOut]:
        alone = max(call.num_values for call in calls) > _MOST_SHARED
        read_outs = await self._calls.ask(_Kind(options, kind), list(calls), request, alone=alone)
        for _ in calls:
            self.metrics.record_packed()
        return read_outs

    def _require_taken(self) -> None:
        if self._exchange.declined_reason:
            raise StockPathTaken(self._exchange.declined_reason)

    async def _serve(self, kind: _Kind, calls: list[TokenCall]) -> Sequence[ReadOut | Exception]:
        pack = partial(pack_calls, kind=kind.reads, policy=self._prefixes)
        return await self._batches.ask(calls, kind.options, pack)
