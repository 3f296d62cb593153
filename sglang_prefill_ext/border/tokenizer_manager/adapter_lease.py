"""The LoRA adapter of a packed call in the front end: found by its name, and kept meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def acquired_adapter(manager: Any, obj: Any) -> AsyncIterator[str]:
    """The id of the one adapter that a request names, empty without one; not unloaded inside.

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
    finally:  # a client that leaves must not keep the adapter from being unloaded
        await asyncio.shield(manager.lora_registry.release(obj.lora_id))
