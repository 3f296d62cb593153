"""The prompts of calls for vectors as checked token ids; concurrent calls are encoded together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.frontend.text_batch import TextBatches
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.checks import check_prompt, flatten_ids
from sglang_prefill_ext.wire.stock_reason import StockReason


class PromptEncoder:
    """Encodes and checks prompts off the event loop."""

    def __init__(self, path: PackedPath, worker: Worker) -> None:
        self._path = path
        self._worker = worker
        types = 1 if path.encoder is None else path.encoder.token_types
        self._texts, self._pairs = (
            TextBatches(path.link, path.config, path.metrics, worker, partial(_checked_text, limit))
            for limit in (path.vocab_size, types * path.vocab_size)
        )

    async def token_ids(self, call: EmbedCall, request: Any) -> list[Int32Array]:
        """Return the checked ids of the prompts of a call.

        Raises:
            RequestError: a prompt is empty, or an id lies outside the vocabulary.
            StockPathTaken: there is no tokenizer.
        """
        if call.is_text:
            if not self._path.has_tokenizer:
                raise StockPathTaken(StockReason.NO_TOKENIZER)
            batches = self._texts if isinstance(call.prompts[0], str) else self._pairs
            return await batches.ask(call.prompts, request)
        tokens = sum(map(len, call.prompts))
        args = (self._path.vocab_size, call.prompts, "input_ids")
        return await self._worker.run_if_large(tokens, _checked, *args)


def _checked_text(limit: int, ids: list[int]) -> Int32Array:
    (checked,) = _checked(limit, [ids], "text")
    return checked


def _checked(limit: int, prompts: Sequence[list[int]], field: str) -> list[Int32Array]:
    if not all(prompts):
        check_prompt([], limit, field=field)
    return [flatten_ids([prompt], limit, field=field) for prompt in prompts]
