"""The prompts of calls for vectors as checked token ids; concurrent calls are encoded together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.link import SchedulerLink
from sglang_prefill_ext.frontend.text_batch import TextBatches
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.packed import Int32Array
from sglang_prefill_ext.wire.stock_reason import StockReason
from sglang_prefill_ext.wire.token_ids import check_prompt, flatten_ids


class PromptEncoder:
    """Encodes and checks prompts off the event loop.

    Args:
        vocab_size: rows of the embedding table; prompt ids must lie below.
        token_types: of the tokens of pairs, see `wire.token_types`.
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
        token_types: int = 1,
    ) -> None:
        self._worker = worker
        self._vocab_size = vocab_size
        self._has_tokenizer = has_tokenizer
        self._texts, self._pairs = (
            TextBatches(link, config, metrics, worker, partial(_checked_text, limit))
            for limit in (vocab_size, token_types * vocab_size)
        )

    async def token_ids(self, call: EmbedCall, request: Any) -> list[Int32Array]:
        """Return the checked ids of the prompts of a call.

        Raises:
            RequestError: a prompt is empty, or an id lies outside the vocabulary.
            StockPathTaken: there is no tokenizer.
        """
        if call.is_text:
            if not self._has_tokenizer:
                raise StockPathTaken(StockReason.NO_TOKENIZER)
            batches = self._texts if isinstance(call.prompts[0], str) else self._pairs
            return await batches.ask(call.prompts, request)
        tokens = sum(map(len, call.prompts))
        args = (self._vocab_size, call.prompts, "input_ids")
        return await self._worker.run_if_large(tokens, _checked, *args)


def _checked_text(limit: int, ids: list[int]) -> Int32Array:
    (checked,) = _checked(limit, [ids], "text")
    return checked


def _checked(limit: int, prompts: Sequence[list[int]], field: str) -> list[Int32Array]:
    if not all(prompts):
        check_prompt([], limit, field=field)
    return [flatten_ids([prompt], limit, field=field) for prompt in prompts]
