"""Holds the LoRA adapters that calls name, so that SGLang does not unload them meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from types import SimpleNamespace
from typing import Any

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.exchange import PackedExchange
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.wire.checks import wrong


def admitted_adapter(
    manager: Any,
    exchange: PackedExchange,
    name: str,
    options: RequestOptions,
    request: Any = None,
) -> AbstractAsyncContextManager[str]:
    """Admit a call, then yield the id of its one adapter; without a name do neither, yield "".

    Raises:
        RequestError: upon entry; see `named_adapter`.
        PrefillExtError: upon entry; see `PackedExchange.admitted`.
    """
    if not name:
        return nullcontext("")
    return _admitted(exchange.admitted(options, request), named_adapter(manager, name))


def adapter_of_request(
    manager: Any, exchange: PackedExchange, obj: Any, options: RequestOptions, request: Any
) -> AbstractAsyncContextManager[str]:
    """As `admitted_adapter`, for the adapter that SGLang's request names; it may be None."""
    if obj is None or not obj.lora_path:
        return nullcontext("")
    return _admitted(exchange.admitted(options, request), _acquired_adapter(manager, obj))


@asynccontextmanager
async def _admitted(
    admission: AbstractAsyncContextManager[object], adapter: AbstractAsyncContextManager[str]
) -> AsyncIterator[str]:
    """Admit first: SGLang unloads adapters in a pause, too, and waits until no request has them."""
    async with admission, adapter as found:
        yield found


@asynccontextmanager
async def named_adapter(manager: Any, name: str) -> AsyncIterator[str]:
    """Yield the id of the adapter of that name, held as by `_acquired_adapter`.

    Raises:
        RequestError: upon entry; SGLang knows no such adapter. An error of the body stays its own.
    """
    async with AsyncExitStack() as held:
        request = SimpleNamespace(lora_path=name, lora_id=None)
        try:
            found = await held.enter_async_context(_acquired_adapter(manager, request))
        except RequestError as error:
            raise wrong("adapter", str(error)) from error
        yield found


@asynccontextmanager
async def _acquired_adapter(manager: Any, obj: Any) -> AsyncIterator[str]:
    """Yield the id of the one adapter that a request names, which is not unloaded meanwhile.

    Raises:
        RequestError: upon entry; SGLang knows no such adapter, and says so in its own words.
    """
    try:
        await manager._validate_and_resolve_lora(obj)
    except ValueError as error:
        raise RequestError(str(error), field="lora_path") from error
    ids = obj.lora_id if isinstance(obj.lora_id, list) else [obj.lora_id]
    try:
        yield ids[0] or ""
    finally:  # shielded: else a client that leaves could prevent the release, and the unloading
        await asyncio.shield(manager.lora_registry.release(obj.lora_id))
