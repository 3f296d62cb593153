"""Hook at the door through which every request for vectors or tokens goes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from sglang.srt.managers.io_struct import EmbeddingReqInput

from sglang_prefill_ext.border.activation import config_of
from sglang_prefill_ext.border.tokenizer_manager.embed_hooks import embed
from sglang_prefill_ext.border.tokenizer_manager.token_hooks import note_request


def generate_request(
    original: Callable[..., AsyncIterator[Any]], manager: Any, obj: Any, request: Any = None
) -> AsyncIterator[Any]:
    """AROUND `TokenizerManager.generate_request`, an asynchronous generator."""
    if config_of(manager.server_args) is None:
        return original(manager, obj, request)
    note_request(request)
    if isinstance(obj, EmbeddingReqInput) and not manager.is_generation:
        return embed(original, manager, obj, request)
    return original(manager, obj, request)
