"""A front end's session with one engine: its calls, from the engine's facts until it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from sglang_prefill_ext.attach import messages
from sglang_prefill_ext.errors import EngineUnavailableError, PrefillExtError
from sglang_prefill_ext.frontend.embed.embed_frontend import EmbedFrontend
from sglang_prefill_ext.frontend.exchange import PackedExchange
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.frontend.score.score_frontend import ScoreFrontend
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.texts.libraries import faithful_copy
from sglang_prefill_ext.texts.text_encoder import TextEncoder
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.prefix_policy import repeated_prefixes
from sglang_prefill_ext.wire.status import Status, end_with


class SessionTexts:
    """Keeps the encoder of the last session, because engines come back with the same tokenizer.

    To read one takes up to a second, for which nothing else runs in the process.
    """

    def __init__(self, metrics: FrontendMetrics) -> None:
        self._metrics = metrics
        self._made_of: tuple[object, ...] = ()
        self._encoder: TextEncoder | None = None

    def encoder_for(self, facts: messages.Facts) -> TextEncoder | None:
        """Return what encodes texts as an engine does; None where the engine has to.

        Raises:
            BaseException: whatever the tokenizer's library raises, also a panic in Rust.
        """
        made_of = facts.tokenizer, facts.probes, facts.config
        if made_of != self._made_of:
            self._encoder, self._made_of = self._encoder_of(facts), made_of
        return self._encoder

    def _encoder_of(self, facts: messages.Facts) -> TextEncoder | None:
        copy = faithful_copy(facts.tokenizer, facts.probes)
        if copy is None:
            return None
        return TextEncoder(copy.encode, facts.tokenizer, facts.config, self._metrics, copy=copy)


class Session:
    """The `SchedulerLink` of a front end in another process than the engine.

    Args:
        send_rows: passes rows for the engine on under a name, without waiting.
        send: passes another message on, without waiting.
        metrics: counts of this process.
        texts: of this process; each of its sessions uses the same.
        one_engine: False for a session with a whole fleet, see `PackedExchange`.
    """

    def __init__(
        self,
        facts: messages.Facts,
        send_rows: Callable[[str, PackedRows, RequestOptions], None],
        send: Callable[[messages.Stock | messages.Abort], None],
        metrics: FrontendMetrics,
        texts: SessionTexts,
        *,
        one_engine: bool = True,
    ) -> None:
        self.facts = facts
        most = facts.config.max_forward_tokens
        self.exchange = PackedExchange(self, max_row_tokens=most, one_engine=one_engine)
        self.exchange.declined_reason = facts.declined
        self.texts = texts.encoder_for(facts)
        if self.texts is not None:  # else the engine encodes, and no text comes here
            self.encode, self.encode_joined = self.texts.encode, self.texts.encode_joined
        self.path = PackedPath(
            self,
            self.exchange,
            facts.config,
            metrics,
            vocab_size=facts.vocab_size,
            label_vocab_size=facts.label_vocab_size,
            embeddings=facts.embeddings,
            has_tokenizer=self.texts is not None,
            prefixes=repeated_prefixes(facts.config, caching=facts.caching),
        )
        self.scoring, self.embedding = ScoreFrontend(self.path), EmbedFrontend(self.path)
        self.send, self._tell = send_rows, send
        self.longest_packed = facts.longest_packed
        self._stock: dict[str, asyncio.Future[messages.StockAnswer]] = {}

    @property
    def in_flight(self) -> int:
        return self.exchange.in_flight + len(self._stock)

    @property
    def encoder(self) -> str:
        """What encodes texts, as `TextEncoder.status` names it; empty if nothing here does."""
        return "" if self.texts is None else str(self.texts.status()["encoder"])

    def close(self, why: str) -> None:
        """End every call: the engine has gone."""
        self.exchange.close(why)
        for rid in self._stock:
            self.end_stock(rid, EngineUnavailableError(why))

    def deliver(
        self, answer: messages.RowsAnswer | messages.StockAnswer | messages.StockError
    ) -> None:
        """Hand an answer to its call, if that is still waiting."""
        if isinstance(answer, messages.RowsAnswer):
            self.exchange.deliver(answer.rid, answer.result)
        elif isinstance(answer, messages.StockError):
            end, wait_s = end_with(answer.status), answer.retry_after_s
            error = end.error_of(answer.message, retry_after_s=wait_s, field=answer.field)
            self.end_stock(answer.rid, error)
        elif (future := self._stock.get(answer.rid)) is not None and not future.done():
            future.set_result(answer)

    def end_stock(self, rid: str, error: PrefillExtError) -> None:
        """End a call that the engine serves by itself, if the call is still waiting."""
        if (future := self._stock.get(rid)) is not None and not future.done():
            future.set_exception(error)

    def fail(self, rid: str, why: str) -> None:
        """End a call whose answer cannot be read, if the call is still waiting."""
        self.deliver(messages.RowsAnswer(rid, PackedResult(Status.FAILED, why)))
        self.deliver(messages.StockError(rid, Status.FAILED, why))

    # The `SchedulerLink`.

    def admission(self, _request: Any = None) -> AbstractAsyncContextManager[None]:
        """Pass at once: the engine admits what reaches it."""
        return nullcontext()

    def abort(self, rid: str) -> None:
        self._tell(messages.Abort(rid))

    def longest_prompt(self) -> int:
        return self.facts.longest_prompt

    async def ask(self, call: messages.Stock) -> messages.StockAnswer:
        """Have the engine serve a call by itself, on the stock path.

        Raises:
            PrefillExtError: the call ended badly, or the engine has gone.
        """
        self.exchange.require_open()
        future: asyncio.Future[messages.StockAnswer] = asyncio.get_running_loop().create_future()
        self._stock[call.rid] = future
        try:
            self._tell(call)
            return await future
        finally:
            del self._stock[call.rid]
            if future.cancelled() and not self.exchange.closed:
                self.abort(call.rid)
