"""Hooks in SGLang's front-end processes: requests that end with the prompt take the packed path.

SGLang reads, validates and tokenizes a request, and forms its answer. Only between the two, where
it would send the request to its scheduler, it is packed with others instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import HTTPException
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput

from sglang_prefill_ext.border.http_server.http_errors import counted
from sglang_prefill_ext.border.tokenizer_manager.token_output import aborted, finished, stop_tokens
from sglang_prefill_ext.frontend.exchange import StockPathTaken, headers_unless_opted_out
from sglang_prefill_ext.frontend.options import (
    RequestOptions,
    headers_of,
    opted_out,
    options_of,
)
from sglang_prefill_ext.frontend.score.score_frontend import ScoreFrontend
from sglang_prefill_ext.frontend.token.token_answer import answer_of
from sglang_prefill_ext.frontend.token.token_call import TokenCall, is_decision
from sglang_prefill_ext.frontend.token.token_frontend import TokenFrontend

_ATTRIBUTE = "_prefill_only_tokens"

_Send = Callable[..., Awaitable[None]]

# The HTTP request, if any, in whose task a tokenized request is sent.
_http_request: ContextVar[Any] = ContextVar("prefill_only_http_request", default=None)

# Whether that is to go to SGLang's scheduler in any case.
_stock_path: ContextVar[bool] = ContextVar("prefill_only_stock_path", default=False)

# Calls under way; a task without a reference may be collected before it is done.
_tasks: set[asyncio.Task[None]] = set()


def attach(manager: Any, scoring: ScoreFrontend) -> TokenFrontend:
    """Let requests of a manager that ends with the prompt take the packed path."""
    frontend = TokenFrontend(
        scoring.exchange,
        scoring.config,
        scoring.metrics,
        prefixes=scoring.prefixes,
        watermarks=manager.server_args.enable_watermark,
    )
    setattr(manager, _ATTRIBUTE, frontend)
    return frontend


@contextmanager
def stock_path() -> Iterator[None]:
    """Whatever is sent inside goes to SGLang's scheduler, without being counted."""
    before = _stock_path.set(True)
    try:
        yield
    finally:
        _stock_path.reset(before)


def note_request(request: Any) -> None:
    """Let what is sent from this task know for which HTTP request, if any."""
    _http_request.set(request)


@contextmanager
def working_for(request: Any) -> Iterator[None]:
    """Likewise for what is done in this block, in a thread that knows of no task."""
    before = _http_request.set(request)
    try:
        yield
    finally:
        _http_request.reset(before)


def current_request() -> Any:
    """The HTTP request, if any, for which this task works."""
    return _http_request.get()


def is_opted_out() -> bool:
    """Whether the client for whom this task works wants the stock path."""
    return opted_out(headers_of(current_request()))


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
    """Start to serve a request on the packed path, if it can be.

    Raises:
        RequestError: a header of the request is wrong.
    """
    frontend: TokenFrontend | None = getattr(manager, _ATTRIBUTE, None)
    if frontend is None or _stock_path.get():
        return False
    is_generation = isinstance(tokenized_obj, TokenizedGenerateReqInput)
    if not is_generation or not is_decision(tokenized_obj):
        return False
    try:
        headers = headers_unless_opted_out(_http_request.get())
        call = frontend.call_of(tokenized_obj, stop_tokens(manager, tokenized_obj.sampling_params))
    except StockPathTaken as taken:
        frontend.metrics.record_fallback(taken.reason)
        return False
    options = options_of(headers, now_ms=time.time() * 1e3)
    tokenized_obj.time_stats.set_api_server_dispatch_time()
    manager._mark_state_dispatched(tokenized_obj.rid)
    work = _Work(manager, frontend, tokenized_obj, manager.rid_to_state.get(tokenized_obj.rid))
    task = asyncio.get_running_loop().create_task(work.serve(call, options))
    tokenized_obj.time_stats.set_api_server_dispatch_finish_time()
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return True


@dataclass(frozen=True, slots=True)
class _Work:
    """A request that was taken over.

    Attributes:
        state: SGLang's record of it. Once it is gone, the client has left; there may be another
            request of the same name by then.
    """

    manager: Any
    frontend: TokenFrontend
    request: Any
    state: Any

    async def serve(self, call: TokenCall, options: RequestOptions) -> None:
        """Answer it, with an error if need be, or have SGLang serve it."""
        try:
            with counted(self.frontend.metrics, _http_request.get()):
                await self._serve(call, options)
        except Exception as error:
            detail = error.detail if isinstance(error, HTTPException) else str(error)
            status = error.status_code if isinstance(error, HTTPException) else 400
            await self._answer(aborted(self.manager, self.request, detail, status))

    async def _serve(self, call: TokenCall, options: RequestOptions) -> None:
        try:
            read_out = await self.frontend.read(call, options)
        except StockPathTaken as taken:
            self.frontend.metrics.record_fallback(taken.reason)
            if self._is_wanted():
                with stock_path():
                    await self.manager._send_one_request(self.request)
            return
        vocab_size = self.manager.model_config.vocab_size
        read = partial(answer_of, call, read_out.table, vocab_size=vocab_size)
        answer = await self.frontend.answers.run_if_large(call.num_values, read)
        await self._answer(finished(self.manager, self.request, answer, read_out))

    async def _answer(self, output: Any) -> None:
        if self._is_wanted():
            await self.manager._handle_batch_output(output)

    def _is_wanted(self) -> bool:
        return self.manager.rid_to_state.get(self.request.rid) is self.state
