"""Hooks in SGLang's front-end processes: chats are encoded by a faster library.

SGLang renders and encodes each chat in a thread of its own, off the event loop. There the library
takes the place of the tokenizer, for which encoding takes several times as long as rendering.
Chats do not meet in one call as texts do (`text_hooks`): changing the thread twice more takes
longer than the call. Everything else about a chat, and every error, stays SGLang's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.entrypoints.openai.parallel_prompt_encode import parallel_prompt_encode

from sglang_prefill_ext.border.tokenizer_manager.call_context import (
    CallContext,
    current_call,
    working_for,
)
from sglang_prefill_ext.border.tokenizer_manager.server import server_of
from sglang_prefill_ext.texts.text_encoder import TextEncoder

_Ids = tuple[list[int], str | None]


def convert_chat(
    original: Callable[..., Any], serving: Any, request: Any, raw_request: Any = None
) -> Any:
    """AROUND `OpenAIServingChat._convert_to_internal_request`, which runs in a thread."""
    with working_for(CallContext(raw_request)):
        return original(serving, request, raw_request)


def encode_chat(
    original: Callable[..., _Ids],
    serving: Any,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    template_kwargs: dict[str, Any],
    encode_kwargs: dict[str, bool],
    use_cache: bool,
    add_generation_prompt: bool = True,
) -> _Ids:
    """AROUND `OpenAIServingChat._render_and_encode_chat_template`."""
    shape = {"tools": tools, "add_generation_prompt": add_generation_prompt}
    encoder = _encoder_for(serving)
    if encoder is None or use_cache or current_call().is_opted_out:
        how = {"template_kwargs": template_kwargs, "encode_kwargs": encode_kwargs}
        return original(serving, messages, use_cache=use_cache, **how, **shape)
    tokenizer = serving.tokenizer_manager.tokenizer
    rendered = tokenizer.apply_chat_template(
        messages, tokenize=False, return_dict=False, **shape, **template_kwargs
    )
    continued = not encode_kwargs.get("add_special_tokens", True)
    ids = encoder.encode_chat(rendered, continued=continued)
    if ids is None:  # SGLang's way has the error that users know
        ids = parallel_prompt_encode(tokenizer, rendered, encode_kwargs)
    return ids, None


def _encoder_for(serving: Any) -> TextEncoder | None:
    """What encodes chats faster than SGLang does; None where they are more than a text."""
    server = server_of(serving.tokenizer_manager)
    encoder = None if server is None else server.chats
    is_text = (
        not serving._prompt_text_round_trip_is_lossy
        and serving.template_manager.python_chat_template is None  # in segments, which are cached
    )
    return encoder if encoder is not None and encoder.is_fast and is_text else None
