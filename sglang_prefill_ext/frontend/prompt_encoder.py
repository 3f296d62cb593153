"""The prompts of calls for vectors as checked token ids; concurrent calls are encoded together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.embed_call import EmbedCall
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.gather import Gatherer
from sglang_prefill_ext.frontend.link import SchedulerLink
from sglang_prefill_ext.frontend.prompts import check_prompt, flatten_ids
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.wire.packed import Int32Array


class PromptEncoder:
    """Encodes and checks prompts off the event loop.

    Args:
        vocab_size: rows of the embedding table; prompt ids must lie below.
    """

    def __init__(
        self,
        link: SchedulerLink,
        config: PrefillOnlyConfig,
        worker: Worker,
        *,
        vocab_size: int,
        has_tokenizer: bool,
    ) -> None:
        self._link = link
        self._worker = worker
        self._vocab_size = vocab_size
        self._has_tokenizer = has_tokenizer
        self._texts: Gatherer[Any, Int32Array] = Gatherer(
            self._encode, max_items=config.gather_rows, max_wait_s=config.gather_ms / 1e3
        )

    async def token_ids(self, call: EmbedCall, request: Any) -> list[Int32Array]:
        """Return the checked ids of the prompts of a call.

        Raises:
            RequestError: a prompt is empty, or an id lies outside the vocabulary.
            StockPathTaken: there is no tokenizer.
        """
        if call.is_text:
            if not self._has_tokenizer:
                raise StockPathTaken("no_tokenizer")
            # Texts and pairs of texts are not mixed in one call of the tokenizer.
            pairs = isinstance(call.prompts[0], tuple)
            return await self._texts.ask(pairs, call.prompts, request)
        tokens = sum(map(len, call.prompts))
        return await self._worker.run_if_large(tokens, self._checked, call.prompts, "input_ids")

    async def _encode(self, _pairs: bool, texts: list[Any]) -> Sequence[Int32Array | Exception]:
        """Encode the texts of several calls in one call of the tokenizer, off the event loop."""
        return await self._worker.run(self._encode_now, texts)

    def _encode_now(self, texts: list[Any]) -> list[Int32Array | Exception]:
        try:
            encoded = self._link.encode(texts)
        except Exception as error:  # whatever a tokenizer raises of a text that it cannot read
            if len(texts) == 1:
                return [error]
            return [outcome for text in texts for outcome in self._encode_now([text])]
        return [self._or_error(ids) for ids in encoded]

    def _or_error(self, ids: list[int]) -> Int32Array | Exception:
        try:
            (checked,) = self._checked([ids], "text")
        except RequestError as error:
            return error
        return checked

    def _checked(self, prompts: Sequence[list[int]], field: str) -> list[Int32Array]:
        if not all(prompts):
            check_prompt([], self._vocab_size, field=field)
        return [flatten_ids([prompt], self._vocab_size, field=field) for prompt in prompts]
