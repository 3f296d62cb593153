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

from sglang_prefill_ext.frontend.exchange import PackedExchange, StockPathTaken
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.wire.stock_reason import StockReason


def admitted_adapter(
    manager: Any, exchange: PackedExchange, name: str, options: RequestOptions, request: Any
) -> AbstractAsyncContextManager[str]:
    """Admit a call, then yield the id of its one adapter; without a name do neither, yield "".

    Admission comes first: SGLang unloads adapters in a pause, too, and waits until no request has
    them.

    Raises:
        StockPathTaken: upon entry; SGLang refuses the name.
        PrefillExtError: upon entry; see `PackedExchange.admitted`.
    """
    if not name:
        return nullcontext("")
    return _admitted(manager, exchange.admitted(options, request), name)


@asynccontextmanager
async def _admitted(
    manager: Any, admission: AbstractAsyncContextManager[object], name: str
) -> AsyncIterator[str]:
    async with AsyncExitStack() as held:
        await held.enter_async_context(admission)
        named = SimpleNamespace(lora_path=name, lora_id=None)
        try:
            found = await held.enter_async_context(acquired_adapter(manager, named))
        except ValueError as error:
            raise StockPathTaken(StockReason.UNUSUAL_INPUT) from error
        yield found


@asynccontextmanager
async def acquired_adapter(manager: Any, obj: Any) -> AsyncIterator[str]:
    """Yield the id of the one adapter that a request names, which is not unloaded meanwhile.

    Empty if it names none.

    Raises:
        ValueError: SGLang knows no such adapter.
    """
    if not obj.lora_path:
        yield ""
        return
    await manager._validate_and_resolve_lora(obj)
    ids = obj.lora_id if isinstance(obj.lora_id, list) else [obj.lora_id]
    try:
        yield ids[0] or ""
    finally:  # shielded: else a client that leaves could prevent the release, and the unloading
        await asyncio.shield(manager.lora_registry.release(obj.lora_id))
