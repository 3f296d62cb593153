"""Hooks in SGLang's front-end processes by which texts and chats are encoded faster.

SGLang encodes texts one at a time on its event loop, which serves nothing else meanwhile. Here the
texts of concurrent requests are encoded together, off the event loop. SGLang renders and encodes
each chat in a thread, where its tokenizer takes several times as long to encode as to render. Here
a faster library encodes in that thread. Chats are not encoded together, because two more changes of
thread would take longer than encoding. All else about a request, and every error, stays SGLang's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from sglang.srt.entrypoints.openai.parallel_prompt_encode import parallel_prompt_encode
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.runtime_context import get_serving

from sglang_prefill_ext.border.tokenizer_manager.call_context import (
    CallContext,
    current_call,
    with_status,
    working_for,
)
from sglang_prefill_ext.border.tokenizer_manager.server import server_of
from sglang_prefill_ext.errors import ServerBusyError
from sglang_prefill_ext.frontend.text_batch import TextBatches, has_texts
from sglang_prefill_ext.texts.text_encoder import TextEncoder
from sglang_prefill_ext.wire.status import end_by


async def tokenize_texts(
    original: Callable[..., Awaitable[Any]],
    manager: Any,
    texts: Any,
    is_cross_encoder: bool = False,
) -> Any:
    """AROUND `TokenizerManager._tokenize_texts`."""
    batches = _batches_of(manager)
    if batches is None or is_cross_encoder or not has_texts(texts):
        return await original(manager, texts, is_cross_encoder)
    found = await _asked(batches, [texts] if isinstance(texts, str) else texts)
    return (found[0] if isinstance(texts, str) else found), None


async def handle_batch(
    original: Callable[..., AsyncIterator[Any]], manager: Any, obj: Any, *args: Any
) -> AsyncIterator[Any]:
    """AROUND `TokenizerManager._handle_batch_request`, which encodes one text after the other.

    SGLang does not encode a request again that has ids besides its text. It makes the requests of
    a list only once, before this, so ids can be put into them here.
    """
    batches = _batches_of(manager)
    if batches is not None and _encodes_one_by_one(obj):
        for number, ids in enumerate(await _asked(batches, obj.text)):
            obj[number].input_ids = ids
    async for answer in original(manager, obj, *args):
        yield answer


async def _asked(batches: TextBatches[list[int]], texts: list[str]) -> list[list[int]]:
    """Encode texts for SGLang's own code; the tokenizer's own errors are raised."""
    try:
        return await batches.ask(texts)
    except ServerBusyError as error:
        batches.path.metrics.count_requests(end_by(error).counted, len(texts))
        raise with_status(error, current_call()) from error


def _batches_of(manager: Any) -> TextBatches[list[int]] | None:
    """What encodes texts of the current call; None if that is left to SGLang."""
    server = server_of(manager)
    return None if server is None or current_call().is_opted_out else server.texts


def _encodes_one_by_one(obj: Any) -> bool:
    """Whether SGLang would encode a request's list of texts one after the other."""
    if not isinstance(obj, GenerateReqInput) or obj.input_ids is not None:
        return False
    at_once = get_serving().enable_tokenizer_batch_encode or obj.parallel_sample_num > 1
    return not at_once and isinstance(obj.text, list) and has_texts(obj.text)


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
    if encoder is None or use_cache:
        how = {"template_kwargs": template_kwargs, "encode_kwargs": encode_kwargs}
        return original(serving, messages, use_cache=use_cache, **how, **shape)
    tokenizer = serving.tokenizer_manager.tokenizer
    rendered = tokenizer.apply_chat_template(
        messages, tokenize=False, return_dict=False, **shape, **template_kwargs
    )
    continued = not encode_kwargs.get("add_special_tokens", True)
    ids = encoder.encode_chat(rendered, continued=continued)
    if ids is None:  # SGLang's own way raises the error that users know
        ids = parallel_prompt_encode(tokenizer, rendered, encode_kwargs)
    return ids, None


def _encoder_for(serving: Any) -> TextEncoder | None:
    """What encodes the current call's chat faster than SGLang does; None if nothing is to do so."""
    server = server_of(serving.tokenizer_manager)
    encoder = None if server is None or current_call().is_opted_out else server.chats
    is_text = (
        not serving._prompt_text_round_trip_is_lossy
        and serving.template_manager.python_chat_template is None  # in segments, which are cached
    )
    return encoder if encoder is not None and encoder.is_fast and is_text else None
