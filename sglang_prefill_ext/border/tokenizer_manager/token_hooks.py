"""Hooks by which requests for log-probs or one token take the packed path.

SGLang reads, validates and tokenizes a request, and forms its answer. Only where it would send the
request to its scheduler, the request is packed with others instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import HTTPException
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput

from sglang_prefill_ext.border.tokenizer_manager.call_context import (
    CallContext,
    counted,
    current_call,
    keep_running,
    stock_path,
)
from sglang_prefill_ext.border.tokenizer_manager.request_fields import (
    ineligible_token_reason,
    is_decision,
)
from sglang_prefill_ext.border.tokenizer_manager.server import PrefillServer, server_of
from sglang_prefill_ext.border.tokenizer_manager.token_output import (
    aborted,
    finished,
    stop_tokens,
)
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.token.token_answer import answer_of
from sglang_prefill_ext.frontend.token.token_call import TokenCall
from sglang_prefill_ext.frontend.token.token_frontend import TokenFrontend

_Send = Callable[..., Awaitable[None]]


async def send_one(original: _Send, manager: Any, tokenized_obj: Any) -> None:
    """AROUND `TokenizerManager._send_one_request`."""
    if not _takes_over(manager, tokenized_obj):
        await original(manager, tokenized_obj)


async def send_batch(original: _Send, manager: Any, tokenized_objs: list[Any]) -> None:
    """AROUND `TokenizerManager._send_batch_request`."""
    rest = [each for each in tokenized_objs if not _takes_over(manager, each)]
    if rest:
        await original(manager, rest)


def _takes_over(manager: Any, tokenized_obj: Any) -> bool:
    """Start to serve a request on the packed path, if it can be."""
    server, context = server_of(manager), current_call()
    if server is None or server.tokens is None or context.is_stock:
        return False
    is_generation = isinstance(tokenized_obj, TokenizedGenerateReqInput)
    if not is_generation or not is_decision(tokenized_obj, tokenized_obj.sampling_params):
        return False
    try:
        with counted(server.path.metrics, context):
            context.raise_if_opted_out()
            call = _call_of(server, server.tokens, tokenized_obj)
            options = context.options(server.path.config)
    except StockPathTaken as taken:
        server.path.metrics.record_fallback(taken.reason)
        return False
    tokenized_obj.time_stats.set_api_server_dispatch_time()
    manager._mark_state_dispatched(tokenized_obj.rid)
    state = manager.rid_to_state.get(tokenized_obj.rid)
    work = _Work(server, server.tokens, context, tokenized_obj, state)
    keep_running(work.serve(call, options))
    tokenized_obj.time_stats.set_api_server_dispatch_finish_time()
    return True


def _call_of(server: PrefillServer, frontend: TokenFrontend, request: Any) -> TokenCall:
    """Raises: StockPathTaken: the request is not eligible, or see `TokenFrontend.call_of`."""
    frontend.path.require_taken()
    manager, filters = server.manager, server.reasoning.filters
    reason = ineligible_token_reason(
        request, has_adapters=manager.enable_lora, filters_reasoning=filters
    )
    if reason is not None:
        raise StockPathTaken(reason)
    return frontend.call_of(request, stop_tokens(manager, request.sampling_params))


@dataclass(frozen=True, slots=True)
class _Work:
    """A request that was taken over from SGLang, and whether its client still waits for it.

    Attributes:
        state: SGLang's record of it. If the manager has no record of the request's name any more,
            or another one, the client has left.
    """

    server: PrefillServer
    frontend: TokenFrontend
    context: CallContext
    request: Any
    state: Any

    async def serve(self, call: TokenCall, options: RequestOptions) -> None:
        """Answer the request, maybe with an error, or have SGLang serve it."""
        try:
            with counted(self.frontend.path.metrics, self.context):
                await self._serve(call, options)
        except Exception as error:
            detail = error.detail if isinstance(error, HTTPException) else str(error)
            status = error.status_code if isinstance(error, HTTPException) else 400
            await self._answer(aborted(self.server.manager, self.request, detail, status))

    async def _serve(self, call: TokenCall, options: RequestOptions) -> None:
        manager, reasoning = self.server.manager, self.server.reasoning
        try:
            call = await self._restricted(call, options)
            read_out = await self.frontend.read(call, options, self)
        except StockPathTaken as taken:
            self.frontend.path.metrics.record_fallback(taken.reason)
            if self._is_wanted():
                with stock_path():
                    await manager._send_one_request(self.request)
            return
        vocab_size = manager.model_config.vocab_size
        read = partial(answer_of, call, read_out.table, vocab_size=vocab_size)
        answer = await self.frontend.path.answers.run_if_large(call.num_values, read)
        await self._answer(finished(manager, self.request, answer, read_out, reasoning))

    async def _restricted(self, call: TokenCall, options: RequestOptions) -> TokenCall:
        """The call, with no more tokens to choose from than its grammar allows, if it has one."""
        server, sampling, ids = self.server, self.request.sampling_params, self.request.input_ids
        first = await server.grammars.first_tokens(sampling, ids, self, options.deadline_ms)
        if first is None:
            return call
        return self.frontend.call_of(self.request, stop_tokens(server.manager, sampling), first)

    async def _answer(self, output: Any) -> None:
        if self._is_wanted():
            await self.server.manager._handle_batch_output(output)

    async def is_disconnected(self) -> bool:
        """Whether SGLang has told its scheduler, which does not know the request, to abort it."""
        return bool(self.state.abort_sent)

    def _is_wanted(self) -> bool:
        return self.server.manager.rid_to_state.get(self.request.rid) is self.state
