"""Scoring calls on the packed path of one front-end process."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import TooManyItemsError
from sglang_prefill_ext.frontend.call import ScoreCall, ineligible_reason, prompts_of
from sglang_prefill_ext.frontend.exchange import PackedExchange, StockPathTaken
from sglang_prefill_ext.frontend.flat import FlatRows, pack_flat, unpacked
from sglang_prefill_ext.frontend.labels import pack_labels
from sglang_prefill_ext.frontend.link import SchedulerLink
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.override_pack import pack_overridden
from sglang_prefill_ext.frontend.pack import pack_token_ids
from sglang_prefill_ext.frontend.prompt_batch import lone_prompt
from sglang_prefill_ext.frontend.read_places import anchors_of
from sglang_prefill_ext.frontend.scores import Matrix, logprob_rows, scores_from_values
from sglang_prefill_ext.frontend.served import Served, served_rows
from sglang_prefill_ext.frontend.setwise import pack_setwise, setwise_scores
from sglang_prefill_ext.frontend.text_pack import pack_texts
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.oneshot.prefix_policy import PrefixPolicy
from sglang_prefill_ext.wire.packed import Int32Array, PackedRows
from sglang_prefill_ext.wire.result import PackedResult

_NO_OPTIONS = RequestOptions()


@dataclass(frozen=True, slots=True)
class Scored:
    """The result of a packed scoring call, and where it comes from."""

    scores: Matrix | list[Matrix]
    prompt_tokens: int
    token_logprobs: Matrix | None
    rows: PackedRows
    answer: PackedResult

    @property
    def served(self) -> Served:
        return served_rows(self.rows, self.answer)


class ScoreFrontend:
    """Serves eligible scoring calls over the packed path.

    Args:
        vocab_size: rows of the embedding table; prompt ids must lie below.
        hidden_size: numbers of an embedding.
        label_vocab_size: label ids must lie below; the tokenizer's size where there is one.
        prefixes: see `shared_beginnings`.
    """

    def __init__(
        self,
        link: SchedulerLink,
        config: PrefillOnlyConfig,
        metrics: FrontendMetrics,
        *,
        vocab_size: int,
        hidden_size: int,
        label_vocab_size: int,
        has_tokenizer: bool,
        prefixes: PrefixPolicy | None,
    ) -> None:
        self.metrics = metrics
        self.config = config
        self.exchange = PackedExchange(link, max_row_tokens=config.max_forward_tokens)
        self._link = link
        self._vocab_size = vocab_size
        self._hidden_size = hidden_size
        self.label_vocab_size = label_vocab_size
        self._has_tokenizer = has_tokenizer
        self.prefixes = prefixes
        self._worker = Worker("prefill-only-pack")

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
        async with self.exchange.admitted(options):
            rows = await self._pack(call, labels)
            rows = replace(rows, normalised=_needs_vocabulary(call))
            longest = self.config.max_forward_tokens
            rows, options = lone_prompt(rows, options, self.prefixes, longest)
            try:
                answer = await self.exchange.ask(rows, options, call.request)
            except StockPathTaken as taken:
                raise StockPathTaken(taken.reason, _with_ids(call, rows)) from None
        self.metrics.record_packed()
        self.metrics.record_work(rows, answer.forwards, answer.tokens_computed)
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

    def _require_eligible(self, call: ScoreCall) -> tuple[Int32Array, Int32Array]:
        reason = self.exchange.declined_reason or ineligible_reason(call)
        if reason is None and not self._has_tokenizer and call.has_texts:
            reason = "no_tokenizer"
        if reason is not None:
            raise StockPathTaken(reason)
        labels = pack_labels(call.label_token_ids, call.num_items, self.label_vocab_size)
        if labels is None:
            raise StockPathTaken("unusual_input")
        return labels

    async def _pack(self, call: ScoreCall, labels: tuple[Int32Array, Int32Array]) -> PackedRows:
        if call.has_overrides:
            known = (self._link.encode, self._vocab_size, self._hidden_size)
            return await self._worker.run(pack_overridden, call, labels, *known)
        if call.score_extraction_token_id is not None:
            return await self._worker.run(self._pack_setwise, call, labels)
        if isinstance(call.items, FlatRows):
            return await self._pack_arrays(call.query, call.items, call.item_first, labels)
        query, items = prompts_of(call)
        if isinstance(query, str):
            texts = (query, items, call.item_first, labels, self._vocab_size)
            return await self._worker.run(pack_texts, self._link, *texts)
        copies = len(items) if call.item_first else 1
        tokens = copies * len(query) + sum(map(len, items))
        args = (query, items, call.item_first, labels, self._vocab_size)
        return await self._worker.run_if_large(tokens, pack_token_ids, *args)

    async def _pack_arrays(
        self,
        query: Int32Array,
        items: FlatRows,
        item_first: bool,
        labels: tuple[Int32Array, Int32Array],
    ) -> PackedRows:
        tokens = (len(items) if item_first else 1) * len(query) + len(items.values)
        args = (query, items, item_first, labels, self._vocab_size)
        return await self._worker.run_if_large(tokens, pack_flat, *args)

    def _pack_setwise(self, call: ScoreCall, labels: tuple[Int32Array, Int32Array]) -> PackedRows:
        query, items = prompts_of(call)
        prompts = [query + item for item in items]
        if isinstance(query, str):
            query = self._link.encode([query])[0] if query else []
            prompts = self._link.encode(prompts)
        anchors = anchors_of(query, prompts, call.score_extraction_token_id)
        return pack_setwise(prompts, anchors, labels, self._vocab_size)


def _with_ids(call: ScoreCall, rows: PackedRows) -> ScoreCall | None:
    """Return a call of texts with their ids, as SGLang's own path takes them; None of others."""
    if not call.has_texts or call.has_overrides or call.score_extraction_token_id is not None:
        return None
    prefix, suffixes = unpacked(rows)
    items = [suffix.tolist() for suffix in suffixes.rows()]
    return replace(call, query=prefix.tolist(), items=items, item_first=False)


def _needs_vocabulary(call: ScoreCall) -> bool:
    """Whether the answer depends on more than the labels' logits."""
    return call.return_token_logprobs or not call.apply_softmax


def _scored(answer: PackedResult, rows: PackedRows, call: ScoreCall) -> Scored:
    values = answer.row_values()
    setwise = call.score_extraction_token_id is not None
    scores_of = setwise_scores if setwise else scores_from_values
    scores = scores_of(values, rows, apply_softmax=call.apply_softmax, temperature=call.temperature)
    token_logprobs = None
    if call.return_token_logprobs:  # of which SGLang shows none for extraction tokens
        token_logprobs = [] if setwise else logprob_rows(values, rows)
    return Scored(scores, rows.num_prompt_tokens, token_logprobs, rows, answer)
