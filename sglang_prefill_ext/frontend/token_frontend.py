"""Calls for log-probs and single tokens on the packed path of one front-end process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import PackedForwardError
from sglang_prefill_ext.frontend.exchange import PackedExchange, StockPathTaken
from sglang_prefill_ext.frontend.gather import Gatherer
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.token_batch import ReadKind, TokenGroup, pack_calls
from sglang_prefill_ext.frontend.token_call import (
    TokenCall,
    ineligible_token_reason,
    token_call_of,
)
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.packed import Float32Array


@dataclass(frozen=True, slots=True)
class ReadOut:
    """The result of a packed call.

    Attributes:
        table: of `TokenGroup.tables`.
        cached_tokens: of the prompt that were not computed.
    """

    table: Float32Array
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the calls of one batch have in common; two with deadlines never have."""

    options: RequestOptions
    reads: ReadKind


class TokenFrontend:
    """Serves eligible calls; concurrent ones share packed requests.

    Args:
        caching: SGLang keeps a prefix cache.
    """

    def __init__(
        self,
        exchange: PackedExchange,
        config: PrefillOnlyConfig,
        metrics: FrontendMetrics,
        *,
        caching: bool,
    ) -> None:
        self.metrics = metrics
        self._exchange = exchange
        self._caching = caching
        self._most_gathered = config.gather_rows
        self._calls = Gatherer(
            self._serve, max_items=config.gather_rows, max_wait_s=config.gather_ms / 1e3
        )

    def call_of(self, request: Any) -> TokenCall:
        """Read a tokenized request.

        Raises:
            StockPathTaken: it is not eligible.
        """
        reason = self._exchange.declined_reason or ineligible_token_reason(request)
        if reason:
            raise StockPathTaken(reason)
        call = token_call_of(request)
        self._exchange.require_fitting(len(call.ids))
        return call

    async def read(self, call: TokenCall, options: RequestOptions) -> ReadOut:
        """Serve a call whose sender is admitted already.

        Raises:
            StockPathTaken, PrefillExtError: see `PackedExchange.ask`.
        """
        (read_out,) = await self._calls.ask(_Kind(options, ReadKind.of(call)), [call])
        self.metrics.record_packed()
        return read_out

    async def _serve(self, kind: _Kind, calls: list[TokenCall]) -> Sequence[ReadOut | Exception]:
        groups = pack_calls(calls, kind.reads, caching=self._caching)
        found = await asyncio.gather(*(self._group(kind, calls, group) for group in groups))
        answers: dict[int, ReadOut | Exception] = {}
        for group, read_outs in zip(groups, found, strict=True):
            answers.update(zip(group.members, read_outs, strict=True))
        return [answers[number] for number in range(len(calls))]

    async def _group(
        self, kind: _Kind, calls: list[TokenCall], group: TokenGroup
    ) -> Sequence[ReadOut | Exception]:
        """The reads of one packed request, or why there are none."""
        members = group.members
        try:
            answer = await self._exchange.ask(group.rows, kind.options, None)
        except PackedForwardError as error:
            if len(members) == 1 or len(calls) >= self._most_gathered:
                return [error] * len(members)
            alone = [await self._serve(kind, [calls[each]]) for each in members]
            return [outcome for (outcome,) in alone]
        except Exception as error:
            return [error] * len(members)
        self.metrics.record_work(group.rows, answer.forwards, answer.tokens_computed)
        cached = min(answer.tokens_cached, group.rows.prefix_len)
        return [ReadOut(table, cached) for table in group.tables(answer.row_values())]
