"""The packed path of one front-end process: encode, send one message, await one answer."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import (
    DeadlineExceededError,
    PackedForwardError,
    PrefillExtError,
    RequestAbortedError,
    ServerBusyError,
    TooManyItemsError,
)
from sglang_prefill_ext.frontend.call import ScoreCall, ineligible_reason, prompts_of
from sglang_prefill_ext.frontend.labels import pack_labels
from sglang_prefill_ext.frontend.link import Answer, SchedulerLink
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.pack import pack_rows, pack_token_ids
from sglang_prefill_ext.frontend.scores import Matrix, logprob_rows, scores_from_values
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.packed import Int32Array, PackedRows

# Calls with more prompt tokens than this are packed in a worker thread, since packing them
# on the event loop would stall other requests for milliseconds.
_INLINE_TOKENS = 20_000

_NO_OPTIONS = RequestOptions()

# How often a waiting call looks whether its client is still there.
_DISCONNECT_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Scored:
    """The result of a packed scoring call, and where it comes from."""

    scores: Matrix
    prompt_tokens: int
    token_logprobs: Matrix | None
    rows: PackedRows
    answer: Answer


class StockPathTaken(Exception):  # noqa: N818 (a signal, not an error)
    """The call must be served by the stock path, for `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PackedFrontend:
    """Serves eligible scoring calls over the packed path.

    Args:
        vocab_size: rows of the embedding table; prompt ids must lie below.
        label_vocab_size: label ids must lie below; the tokenizer's size where there is one.
    """

    def __init__(
        self,
        link: SchedulerLink,
        config: PrefillOnlyConfig,
        metrics: FrontendMetrics,
        *,
        vocab_size: int,
        label_vocab_size: int,
        has_tokenizer: bool,
    ) -> None:
        self.metrics = metrics
        self.config = config
        self._link = link
        self._vocab_size = vocab_size
        self._label_vocab_size = label_vocab_size
        self._has_tokenizer = has_tokenizer
        self._pending: dict[str, asyncio.Future[Answer]] = {}
        self._declined_reason: str | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefill-only-pack")

    async def score(self, call: ScoreCall, options: RequestOptions = _NO_OPTIONS) -> Scored:
        """Serve a call with one packed request.

        Raises:
            StockPathTaken: the call is not eligible; nothing was sent.
            RequestError: the call is wrong.
            RequestAbortedError: the client left, or an operator aborted the request.
            PackedForwardError: the forward failed.
            ServerBusyError: too much waits already.
            DeadlineExceededError: the deadline of `options` could not be met.
        """
        labels = self._require_eligible(call)
        async with AsyncExitStack() as admitted:
            await _by(options.deadline_ms, admitted.enter_async_context(self._link.admission()))
            rows = await self._pack(call, labels)
            rows = replace(rows, normalised=_needs_vocabulary(call))
            self._require_fitting(rows)
            answer = await self._round_trip(rows, options, call.request)
        if answer.status == "declined":
            self.decline(answer.message)
            raise StockPathTaken(answer.message)
        if answer.status == "unfit":
            raise StockPathTaken("row_over_budget")
        if answer.status != "ok":
            raise _unhappy_end(answer)
        self.metrics.record_packed(rows, answer.forwards, answer.tokens_computed)
        return _scored(answer, rows, call)

    def check_limits(self, call: ScoreCall) -> None:
        """Refuse too many items, on either path.

        Raises:
            TooManyItemsError: more than `max_items`.
        """
        if call.num_items > self.config.max_items:
            raise TooManyItemsError(
                f"items: {call.num_items} items exceed the limit of {self.config.max_items}. "
                "Split the request, or raise --prefill-only-max-items."
            )

    def decline(self, reason: str) -> None:
        """Send every call of this process down the stock path from now on."""
        self._declined_reason = reason

    def deliver(self, rid: str, answer: Answer) -> None:
        """Hand an answer to its waiting call; a call that left already is fine."""
        future = self._pending.get(rid)
        if future is not None and not future.done():
            future.set_result(answer)

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def _require_eligible(self, call: ScoreCall) -> tuple[Int32Array, Int32Array]:
        reason = self._declined_reason or ineligible_reason(call)
        if reason is None and not self._has_tokenizer and isinstance(call.items[0], str):
            reason = "no_tokenizer"
        if reason is not None:
            raise StockPathTaken(reason)
        labels = pack_labels(call.label_token_ids, call.num_items, self._label_vocab_size)
        if labels is None:
            raise StockPathTaken("unusual_input")
        return labels

    def _require_fitting(self, rows: PackedRows) -> None:
        longest = int(rows.suffix_lens.max())
        if rows.prefix_len + longest > self._link.longest_prompt():
            raise StockPathTaken("prompt_too_long")
        if longest > self.config.max_forward_tokens:
            raise StockPathTaken("row_over_budget")

    async def _pack(self, call: ScoreCall, labels: tuple[Int32Array, Int32Array]) -> PackedRows:
        query, items = prompts_of(call)
        loop = asyncio.get_running_loop()
        if isinstance(query, str):
            texts = [item + query if call.item_first else query + item for item in items]
            return await loop.run_in_executor(self._worker, self._encode_and_pack, texts, labels)
        args = (query, items, call.item_first, labels, self._vocab_size)
        copies = len(items) if call.item_first else 1
        if copies * len(query) + sum(map(len, items)) > _INLINE_TOKENS:
            return await loop.run_in_executor(self._worker, pack_token_ids, *args)
        return pack_token_ids(*args)

    def _encode_and_pack(
        self, texts: list[str], labels: tuple[Int32Array, Int32Array]
    ) -> PackedRows:
        return pack_rows(self._link.encode(texts), labels, self._vocab_size)

    async def _round_trip(self, rows: PackedRows, options: RequestOptions, request: Any) -> Answer:
        rid = f"packed-{uuid.uuid4().hex}"
        future = self._pending[rid] = asyncio.get_running_loop().create_future()
        try:
            self._link.send(rid, rows, options)
            return await _wait_while_connected(future, getattr(request, "is_disconnected", None))
        finally:
            del self._pending[rid]
            if future.cancelled() or not future.done():
                self._link.abort(rid)


async def _by(deadline_ms: float | None, admission: Awaitable[object]) -> None:
    """Wait for an admission; what has been admitted is ended by the scheduler."""
    left_s = None if deadline_ms is None else deadline_ms / 1e3 - time.time()
    try:
        async with asyncio.timeout(left_s):
            await admission
    except TimeoutError as error:
        raise DeadlineExceededError(
            "The deadline of the request passed while the engine took no requests."
        ) from error


async def _wait_while_connected(
    future: asyncio.Future[Answer], is_disconnected: Callable[[], Awaitable[bool]] | None
) -> Answer:
    if is_disconnected is None:
        return await future
    while True:
        done, _ = await asyncio.wait((future,), timeout=_DISCONNECT_POLL_S)
        if done:
            return future.result()
        if await is_disconnected():
            raise RequestAbortedError("The client disconnected before the answer was ready.")


def _needs_vocabulary(call: ScoreCall) -> bool:
    """Whether the answer depends on more than the labels' logits."""
    return call.return_token_logprobs or not call.apply_softmax


def _unhappy_end(answer: Answer) -> PrefillExtError:
    if answer.status == "aborted":
        return RequestAbortedError(answer.message)
    if answer.status == "expired":
        return DeadlineExceededError(answer.message)
    if answer.status == "rejected":
        busy = ServerBusyError(answer.message)
        busy.retry_after_s = answer.retry_after_s
        return busy
    return PackedForwardError(f"Packed forward: {answer.message}")


def _scored(answer: Answer, rows: PackedRows, call: ScoreCall) -> Scored:
    values = answer.label_values()
    scores = scores_from_values(
        values, rows, apply_softmax=call.apply_softmax, temperature=call.temperature
    )
    token_logprobs = logprob_rows(values, rows) if call.return_token_logprobs else None
    return Scored(scores, rows.num_prompt_tokens, token_logprobs, rows, answer)
