"""Serves attached front ends and routers with the tokenizer manager of the main process."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any

from sglang.srt.managers.io_struct import EmbeddingReqInput

from sglang_prefill_ext.attach.carrier import digest_of
from sglang_prefill_ext.attach.messages import (
    Beat,
    Facts,
    Stock,
    StockAnswer,
    StockError,
    StockScore,
    StockVectors,
)
from sglang_prefill_ext.border.tokenizer_manager.adapters import admitted_adapter, named_adapter
from sglang_prefill_ext.border.tokenizer_manager.call_context import keep_running
from sglang_prefill_ext.border.tokenizer_manager.gc_frontend import thresholds_of_server
from sglang_prefill_ext.border.tokenizer_manager.server import PrefillServer
from sglang_prefill_ext.border.tokenizer_manager.stock_answers import (
    Caller,
    forget_outcome,
    rows_of,
    stock_error,
    with_override_arrays,
)
from sglang_prefill_ext.frontend.answers import served_rows
from sglang_prefill_ext.frontend.foreign_rows import check_foreign_rows
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.texts.libraries import PROBES
from sglang_prefill_ext.wire.flat import unpacked
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.status import STOCK_ENDS, Status, end_with
from sglang_prefill_ext.wire.stock_reason import StockReason


class AttachableEngine:
    """The tokenizer manager behind the interface `attach.engine.Engine`."""

    def __init__(self, server: PrefillServer) -> None:
        self._manager = manager = server.manager
        self._server = server
        self._path = server.path
        self._link = link = server.link
        # A copy does not know that special tokens in texts are not to be read as such. So a front
        # end must not encode such texts.
        backend = getattr(manager.tokenizer, "backend_tokenizer", None)
        splits = getattr(backend, "encode_special_tokens", False)
        self._tokenizer_json = "" if splits else link.tokenizer_json

    @cached_property
    def _probes(self) -> dict[str, list[int]]:
        if not self._tokenizer_json:
            return {}
        return dict(zip(PROBES, self._link.encode(PROBES), strict=True))

    @cached_property
    def tokenizer_digest(self) -> str:
        return digest_of(self._tokenizer_json)

    @property
    def tokens(self) -> int:
        """Tokens in packed requests of this process that are under way."""
        return self._path.exchange.tokens

    @property
    def leaving(self) -> bool:
        """Whether SIGTERM has come; SGLang ends once nothing is under way."""
        return bool(self._manager.gracefully_exit)

    @property
    def paused(self) -> bool:
        """Whether requests wait for `/continue_generation`."""
        return bool(self._manager.is_pause)

    @property
    def timeout_ms(self) -> int:
        """See `engine.Engine`."""
        return self._path.config.timeout_ms

    @property
    def weights(self) -> str:
        """Names the weights of the model, which an operator may replace."""
        return f"{self._manager.model_path} {self._manager.config_value('weight_version')}"

    def facts(self) -> Facts:
        manager, path = self._manager, self._path
        names = getattr(manager.model_config.hf_config, "id2label", None) or {}
        return Facts(
            model=str(manager.model_config.model_path),
            sglang_version=version("sglang"),
            vocab_size=self._path.vocab_size,
            embeddings=path.embeddings,
            label_vocab_size=path.label_vocab_size,
            longest_prompt=self._link.longest_prompt(),
            longest_packed=self._link.longest_packed,
            is_generation=manager.is_generation,
            class_names=[str(names[number]) for number in sorted(names)],
            caching=not manager.server_args.disable_radix_cache,
            config=path.config,
            tokenizer=self._tokenizer_json,
            probes=self._probes,
            declined=path.exchange.declined_reason,
            gc_thresholds=thresholds_of_server(),
        )

    async def serve_rows(self, rows: PackedRows, options: RequestOptions) -> PackedResult:
        """See `engine.Engine`."""
        check_foreign_rows(rows, self._path)
        exchange = self._path.exchange
        keeping = self._server.records.keeping(None, rows.num_rows, partial(_contents, rows))
        with keeping as record:
            async with exchange.admitted(options, adapter=rows.adapter):
                result = await exchange.round_trip(rows, options, None)
            if result.status is Status.OK:
                record.served = served_rows(rows, result)
            elif result.status is Status.DECLINED:
                exchange.declined_reason = StockReason(result.message)  # told by `facts`
            elif result.status not in STOCK_ENDS:
                record.error = end_with(result.status).error_of(result.message)
        return result

    def count(self, beat: Beat) -> None:
        self._path.metrics.add(beat.requests, beat.totals)

    def adapter(self, name: str, options: RequestOptions) -> AbstractAsyncContextManager[str]:
        """See `engine.Engine`."""
        return admitted_adapter(self._manager, self._path.exchange, name, options)

    async def serve_stock(self, call: Stock) -> StockAnswer | StockError:
        """Serve a call by SGLang's own method; our hooks there pack the call if possible."""
        caller = Caller(call.headers)
        if isinstance(call, StockScore):
            work = self._score(call, caller)
        else:
            work = self._vectors(call, caller)
        task = keep_running(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller.left = True  # SGLang checks this, and ends its requests
            task.add_done_callback(forget_outcome)
            raise
        except Exception as error:
            return stock_error(call.rid, error)

    async def _score(self, call: StockScore, caller: Caller) -> StockAnswer:
        arguments = with_override_arrays(call.arguments)
        result = await self._manager.score_request(**arguments, request=caller)
        rows, tokens = rows_of(result.scores), result.prompt_tokens
        return StockAnswer(call.rid, rows, tokens, result.token_logprobs)

    async def _vectors(self, call: StockVectors, caller: Caller) -> StockAnswer:
        if call.adapter:
            async with named_adapter(self._manager, call.adapter):
                pass  # only to name the field if there is no such adapter, which SGLang does not do
        field = "text" if isinstance(call.prompts[0], str) else "input_ids"
        request = EmbeddingReqInput(
            **{field: call.prompts}, dimensions=call.dimensions, lora_path=call.adapter or None
        )
        answers = await anext(aiter(self._manager.generate_request(request, caller)))
        tokens = sum(answer["meta_info"]["prompt_tokens"] for answer in answers)
        return StockAnswer(call.rid, rows_of([each["embedding"] for each in answers]), tokens)


def _contents(rows: PackedRows) -> dict[str, Any]:
    prefix, suffixes = unpacked(rows)
    return {"input_ids": {"query": prefix.tolist(), "items": suffixes.tolist()}}
