"""Serves scoring calls on the packed path of one front-end process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import msgspec

from sglang_prefill_ext.frontend.answers import Scored, flat_scores, label_rows, scores_by_item
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.pack import FIELD, pack_token_ids
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.frontend.score.score_call import (
    ScoreCall,
    ineligible_reason,
    pack_labels,
    prompts_of,
)
from sglang_prefill_ext.frontend.score.score_pack import pack_overridden, pack_setwise_call
from sglang_prefill_ext.frontend.worker import Worker, is_large
from sglang_prefill_ext.wire.arrays import FlatRows, int_array
from sglang_prefill_ext.wire.checks import check_memory, check_repeated, check_unicode, wrong
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy, lone_prefix
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.stock_reason import StockReason

_NO_OPTIONS = RequestOptions()

_Run: TypeAlias = Callable[..., Awaitable[Any]]
"""Calls a function in the thread, for one caller; see `Worker.run`."""


class ScoreFrontend:
    """Serves eligible scoring calls over the packed path."""

    def __init__(self, path: PackedPath) -> None:
        self.path = path
        self._worker = Worker("prefill-only-pack")

    async def score(self, call: ScoreCall, options: RequestOptions = _NO_OPTIONS) -> Scored:
        """Serve a call with one packed request; the errors are those of `ask`."""
        rows, answer = await self.ask(call, options)
        return await self.path.answers.run_if_large(rows.num_values, scored_of, answer, rows, call)

    async def ask(
        self, call: ScoreCall, options: RequestOptions = _NO_OPTIONS
    ) -> tuple[PackedRows, PackedResult]:
        """Return the packed request of a call, and its answer.

        Raises:
            StockPathTaken: the call is not eligible, or see `PackedExchange.ask`.
            RequestError: the call is wrong.
            PrefillExtError: see `PackedExchange.ask`.
        """
        labels = self._require_eligible(call)
        async with self.path.exchange.admitted(options, call.request):
            run = partial(self._run, call, options)
            encoded = await self._encoded(call, run)
            try:
                rows = await self._pack(encoded, labels, run)
                policy = self.path.exchange.earlier(self.path.prefixes)
                longest = self.path.config.max_forward_tokens
                rows, options = lone_prompt(rows, options, policy, longest)
                answer = await self.path.exchange.ask(rows, options, call.request)
            except StockPathTaken as taken:
                listed = None if encoded is call else encoded.listed()
                raise StockPathTaken(taken.reason, listed) from None
        self.path.metrics.count_requests("packed")
        self.path.metrics.record_work(rows, answer)
        return rows, answer

    async def _run(
        self, call: ScoreCall, options: RequestOptions, work: Callable[..., Any], *args: Any
    ) -> Any:
        """Encode or pack in the worker's thread.

        Raises:
            WrongTypeError: a text has lone surrogates, which tokenizers call a wrong type.
            Exception: see `Worker.run`.
        """
        request, deadline_ms = call.request, options.deadline_ms
        try:
            return await self._worker.run(work, *args, request=request, deadline_ms=deadline_ms)
        except TypeError:
            if call.has_texts:
                query, items = prompts_of(call)
                check_unicode([query, *items])
            raise

    def _require_eligible(self, call: ScoreCall) -> Labels:
        reason = self.path.exchange.declined_reason or ineligible_reason(call)
        if reason is None and not self.path.has_tokenizer and call.has_texts:
            reason = StockReason.NO_TOKENIZER
        if reason is not None:
            raise StockPathTaken(reason)
        labels = pack_labels(call.label_token_ids, call.num_items, self.path.label_vocab_size)
        if labels is None:
            raise StockPathTaken(StockReason.UNUSUAL_INPUT)
        # Whether the answer depends on more than the labels' logits.
        needs_all = bool(call.return_token_logprobs or not call.apply_softmax)
        return msgspec.structs.replace(labels, normalised=needs_all)

    async def _encoded(self, call: ScoreCall, run: _Run) -> ScoreCall:
        """Encode a call of plain texts to arrays of ids; return any other call as it is."""
        setwise = call.score_extraction_token_id is not None
        if not call.has_texts or call.has_overrides or setwise:
            return call
        query, items = prompts_of(call)
        encode = partial(self.path.link.encode_joined, item_first=call.item_first)
        shared, rest = await run(encode, query, items)
        return replace(call, query=shared, items=rest)

    async def _pack(self, call: ScoreCall, labels: Labels, run: _Run) -> PackedRows:
        tokens = self._check_sizes(call, labels)
        rows: PackedRows
        if call.has_overrides:
            rows = await run(pack_overridden, call, labels, self.path)
        elif call.score_extraction_token_id is not None:
            rows = await run(pack_setwise_call, call, labels, self.path)
        else:
            query, items = prompts_of(call)
            args = (query, items, call.item_first, labels, self.path.vocab_size)
            if is_large(tokens):
                rows = await run(pack_token_ids, *args)
            else:
                rows = pack_token_ids(*args)
        return rows

    def _check_sizes(self, call: ScoreCall, labels: Labels) -> int:
        """Refuse what is too large; return the tokens of the packed call, 0 for texts."""
        setwise = call.score_extraction_token_id is not None
        # How many numbers a setwise call reads is known later; `pack_setwise` checks them.
        numbers = 0 if setwise else labels.num_values(call.num_items)
        query, items = prompts_of(call)
        if isinstance(query, str):
            if setwise:
                check_repeated(query, items)
            check_memory(self.path.config, numbers=numbers)
            return 0
        if isinstance(items, FlatRows):
            longest_item, own = int(items.counts.max()), len(items.values)
        else:
            lens = list(map(len, items))
            longest_item, own = max(lens), sum(lens)
        whole = len(items) * len(query) + own
        self._require_fitting(len(query) + longest_item, whole)
        stacked = call.stacked_query_item_embed_overrides is not None
        tokens = whole if call.item_first or setwise or stacked else len(query) + own
        check_memory(self.path.config, tokens=tokens, numbers=numbers)
        return tokens

    def _require_fitting(self, tokens: int, all_tokens: int) -> None:
        """Leave prompts that are too long to SGLang, unless it would use much memory for them.

        Args:
            tokens, all_tokens: of the longest prompt, and of all prompts together.
        """
        longest = self.path.link.longest_prompt()
        if tokens <= longest:
            return
        if all_tokens > self.path.config.max_queued_tokens and not self.path.truncates:
            raise wrong(
                FIELD,
                f"a prompt has {tokens} tokens, the model takes {longest} at most. "
                "Send a shorter query or shorter items.",
            )
        raise StockPathTaken(StockReason.PROMPT_TOO_LONG)


def lone_prompt(
    rows: PackedRows, options: RequestOptions, policy: PrefixPolicy | None, longest: int
) -> tuple[PackedRows, RequestOptions]:
    """Give a packed request of one prompt the prefix that `shared_beginnings` would give it.

    Args:
        policy: see `shared_beginnings`.
        longest: tokens of a prompt that fits a forward; longer ones stay as they are.
    """
    usual = rows.reads_row_ends and not len(rows.overrides)
    if rows.num_rows > 1 or len(rows.tokens) > longest or not usual:
        return rows, options
    keep = options.keep_prefix
    prefix, repeated = lone_prefix(rows.tokens, rows.adapter, policy, keep=keep)
    if not prefix:
        return rows, options
    rows = replace(rows, prefix_len=prefix, suffix_lens=int_array([len(rows.tokens) - prefix]))
    return rows, replace(options, keep_prefix=repeated or keep)


def scored_of(answer: PackedResult, rows: PackedRows, call: ScoreCall) -> Scored:
    values = answer.row_values()
    setwise = call.score_extraction_token_id is not None
    flat = flat_scores(
        values, rows.read, apply_softmax=call.apply_softmax, temperature=call.temperature
    )
    scores, token_logprobs = label_rows(flat, rows.read), None
    if call.return_token_logprobs:  # SGLang shows none for extraction tokens
        token_logprobs = [] if setwise else label_rows(values, rows.read)
    return Scored(scores_by_item(scores, rows) if setwise else scores, token_logprobs, rows, answer)
