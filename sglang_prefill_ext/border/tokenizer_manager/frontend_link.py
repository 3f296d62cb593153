"""SGLang's tokenizer manager behind the frontend's `SchedulerLink` interface."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.runtime_context import get_parallel

from sglang_prefill_ext.border.messages import (
    PackedAbortReq,
    PackedRowsReq,
    PackedRowsResults,
    PackedStatusReq,
    PackedStatusResult,
)
from sglang_prefill_ext.border.model.model_classes import encoder_traits, longest_packed
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.ask_processes import Questions
from sglang_prefill_ext.frontend.client_wait import while_connected
from sglang_prefill_ext.frontend.exchange import CALL_NAME, PackedExchange
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.texts.text_encoder import TextEncoder
from sglang_prefill_ext.wire.arrays import EmbeddingKind
from sglang_prefill_ext.wire.packed import PackedRows, to_bytes

_STATUS_TIMEOUT_S = 5.0
_SHUT_DOWN = "The server is shutting down. Send the request to another one."
_LOOP_ENDED = "The event loop of the first call has ended. Make all calls of an engine in one loop."


class TokenizerManagerLink:
    """Encodes, sends and waits as the tokenizer manager does for its own requests."""

    def __init__(self, manager: Any, config: PrefillOnlyConfig, metrics: FrontendMetrics) -> None:
        self._manager = manager
        self._encoder = encoder_traits(manager.model_config)
        self.longest_packed = longest_packed(manager.model_config)
        # SGLang ends every text of EmbeddingGemma with this token, which the tokenizer leaves out.
        ends = manager.model_config.is_embedding_gemma and manager.tokenizer is not None
        self._last_token: int | None = manager.tokenizer.eos_token_id if ends else None
        copied = getattr(manager.tokenizer, "is_fast", False) and not ends
        self.tokenizer_json = manager.tokenizer.backend_tokenizer.to_str() if copied else ""
        self.texts = TextEncoder(self._encode_plainly, self.tokenizer_json, config, metrics)
        self.encode, self.encode_joined = self.texts.encode, self.texts.encode_joined
        self.exchange = PackedExchange(self, max_row_tokens=config.max_forward_tokens)
        self._statuses: Questions[dict[str, Any]] = Questions()
        self._receives = False

    @asynccontextmanager
    async def admission(self, request: Any = None) -> AsyncIterator[None]:
        manager = self._manager
        self._receive()
        async with manager.is_pause_cond:
            if manager.is_pause:
                async with while_connected(request):
                    await manager.is_pause_cond.wait_for(lambda: not manager.is_pause)
        # Held until the answer is there, so that a weight update, which is the writer, waits.
        async with manager.model_update_lock.reader_lock:
            yield

    def _receive(self) -> None:
        """Have SGLang receive answers, and close the exchange when it does so no more.

        On SIGTERM it ends its schedulers, and then its tasks. Requests that came meanwhile would
        wait for ever, and the server for them.
        """
        if not self._receives:
            self._manager.auto_create_handle_loop()
            self._receives = True
            for task in self._manager.asyncio_tasks:
                task.add_done_callback(self._close)

    def _close(self, _task: object) -> None:
        self.exchange.close(_SHUT_DOWN if self._manager.gracefully_exit else _LOOP_ENDED)

    def send(self, rid: str, rows: PackedRows, options: RequestOptions) -> None:
        message = PackedRowsReq(
            rid=rid,
            row_bytes=to_bytes(rows),
            priority=options.priority,
            deadline_ms=options.deadline_ms,
            keep_prefix=options.keep_prefix,
        )
        self._manager._dispatch_to_scheduler(message)

    def abort(self, rid: str) -> None:
        self._manager._dispatch_to_scheduler(AbortReq(rid=rid))

    def _encode_plainly(
        self, texts: Sequence[str | tuple[str, str]], *, continued: bool = False
    ) -> list[list[int]]:
        tokenizer = self._manager.tokenizer
        if self._encoder is not None and not isinstance(texts[0], str):
            return self._encode_typed(texts)
        kind: dict[str, Any] = {"add_special_tokens": False} if continued else {}
        ids: list[list[int]]
        if not getattr(tokenizer, "is_fast", False):
            pairs = ((text,) if isinstance(text, str) else text for text in texts)
            ids = [tokenizer.encode(*pair, **kind) for pair in pairs]
        else:
            quiet = {"return_attention_mask": False, "return_token_type_ids": False}
            ids = tokenizer(list(texts), **quiet, **kind)["input_ids"]
        last = [] if self._last_token is None else [self._last_token]
        return [each if each[-1:] == last else each + last for each in ids] if last else ids

    def _encode_typed(self, pairs: Sequence[Any]) -> list[list[int]]:
        """Encode pairs as SGLang does for a cross encoder, see `EncoderTraits.token_types`.

        A token type that the model does not have gives an id that later checks refuse.
        """
        vocab_size = embedding_rows(self._manager)
        encoded = self._manager.tokenizer(list(pairs), return_token_type_ids=True)
        return [
            [token + kind * vocab_size for token, kind in zip(ids, types, strict=True)]
            for ids, types in zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)
        ]

    def longest_prompt(self) -> int:
        manager = self._manager
        longest = manager.context_len - manager.num_reserved_tokens
        if manager.max_req_input_len is not None:
            longest = min(longest, manager.max_req_input_len)
        longest = int(longest) - 1
        return longest if self._encoder is None else min(longest, self._encoder.longest_prompt)

    async def scheduler_status(self) -> list[dict[str, Any]]:
        """Ask every data-parallel replica for its status; those that do not answer in time are left
        out."""
        manager = self._manager
        self._receive()

        def ask(rid: str) -> None:
            manager._dispatch_to_scheduler(PackedStatusReq(rid=rid))

        replicas = get_parallel().num_dp_ranks
        replies = await self._statuses.ask(ask, replicas, _STATUS_TIMEOUT_S)
        return sorted(replies, key=lambda reply: int(reply["dp_rank"]))

    def are_all_schedulers(self, replies: list[dict[str, Any]]) -> bool:
        """Whether every data-parallel replica is among those that answered."""
        return bool(len(replies) == get_parallel().num_dp_ranks)

    def deliver_rows(self, message: PackedRowsResults) -> None:
        for rid, result in message.results.items():
            self.exchange.deliver(rid, result)

    def deliver_status(self, message: PackedStatusResult) -> None:
        self._statuses.deliver(message.rid, json.loads(message.payload))

    def deliver_abort(self, message: PackedAbortReq) -> None:
        """End calls as if this worker had been asked: they look at what is set here.

        As in SGLang's scheduler, names need only begin with the given one. But a call that its
        client did not name must not end with the request "p" of another client.
        """
        for rid, state in self._manager.rid_to_state.items():
            begins = rid.startswith(message.rid) and not rid.startswith(CALL_NAME)
            if begins or rid == message.rid:
                state.abort_sent = True


def embedding_kind(manager: Any) -> EmbeddingKind:
    """Width and dtype of the model's embeddings, which those of a request have to fit."""
    model = manager.model_config
    with_tokens = bool(getattr(model.hf_text_config, "hidden_size_per_layer_input", 0))
    return EmbeddingKind(model.hidden_size, str(model.dtype).removeprefix("torch."), with_tokens)


def embedding_rows(manager: Any) -> int:
    """Rows of the embedding table; token ids must lie below. The output head may have more."""
    return int(manager.model_config.hf_text_config.vocab_size)
