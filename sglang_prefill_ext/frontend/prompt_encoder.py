"""The prompts of calls for vectors as checked token ids; concurrent calls are encoded together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.embed_call import EmbedCall
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.link import SchedulerLink
from sglang_prefill_ext.frontend.prompts import check_prompt, flatten_ids
from sglang_prefill_ext.frontend.text_batch import TextBatches
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.metrics import FrontendMetrics
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
        metrics: FrontendMetrics,
        worker: Worker,
        *,
        vocab_size: int,
        has_tokenizer: bool,
    ) -> None:
        self._worker = worker
        self._vocab_size = vocab_size
        self._has_tokenizer = has_tokenizer
        self._texts = TextBatches(link, config, metrics, worker, self._checked_text)

    async def token_ids(self, call: EmbedCall, request: Any) -> list[Int32Array]:
        """Return the checked ids of the prompts of a call.

        Raises:
            RequestError: a prompt is empty, or an id lies outside the vocabulary.
            StockPathTaken: there is no tokenizer.
        """
        if call.is_text:
            if not self._has_tokenizer:
                raise StockPathTaken("no_tokenizer")
            return await self._texts.ask(call.prompts, request)
        tokens = sum(map(len, call.prompts))
        return await self._worker.run_if_large(tokens, self._checked, call.prompts, "input_ids")

    def _checked_text(self, ids: list[int]) -> Int32Array:
        (checked,) = self._checked([ids], "text")
        return checked

    def _checked(self, prompts: Sequence[list[int]], field: str) -> list[Int32Array]:
        if not all(prompts):
            check_prompt([], self._vocab_size, field=field)
        return [flatten_ids([prompt], self._vocab_size, field=field) for prompt in prompts]
