"""Hooks in SGLang's front-end processes: texts are encoded together, off the event loop.

SGLang encodes one text at a time on its event loop, and while it does so serves nobody. Everything
else about a request, and every error, stays SGLang's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.runtime_context import get_serving

from sglang_prefill_ext.border.http_server.http_errors import with_status
from sglang_prefill_ext.border.tokenizer_manager.frontend_link import TokenizerManagerLink
from sglang_prefill_ext.border.tokenizer_manager.token_hooks import current_request, is_opted_out
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import ServerBusyError
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.text_batch import TextBatches
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.status import end_by
from sglang_prefill_ext.wire.stock_reason import StockReason

_ATTRIBUTE = "_prefill_only_texts"


def attach(
    manager: Any, link: TokenizerManagerLink, config: PrefillOnlyConfig, metrics: FrontendMetrics
) -> None:
    """Encode the texts that a manager would, if nothing about them is unusual."""
    unusual = (
        not link.tokenizer_json  # no tokenizer, or one that threads cannot share
        or manager.mm_processor is not None
        or manager.async_dynamic_batch_tokenizer is not None  # the operator's choice
        or manager.model_config.is_embedding_gemma  # whose texts SGLang ends with a token more
    )
    if not unusual:
        worker = Worker("prefill-only-texts")
        setattr(manager, _ATTRIBUTE, TextBatches(link, config, metrics, worker, list))


async def tokenize_texts(
    original: Callable[..., Awaitable[Any]],
    manager: Any,
    texts: Any,
    is_cross_encoder: bool = False,
) -> Any:
    """AROUND `TokenizerManager._tokenize_texts`."""
    batches = _batches_of(manager)
    if batches is None or is_cross_encoder or not _has_texts(texts) or is_opted_out():
        return await original(manager, texts, is_cross_encoder)
    found = await _asked(batches, [texts] if isinstance(texts, str) else texts)
    return (found[0] if isinstance(texts, str) else found), None


async def handle_batch(
    original: Callable[..., AsyncIterator[Any]], manager: Any, obj: Any, *args: Any
) -> AsyncIterator[Any]:
    """AROUND `TokenizerManager._handle_batch_request`, which encodes one text after the other.

    A request that has its ids beside its text is not encoded again; SGLang makes those of a list
    once, and before this.
    """
    batches = _batches_of(manager)
    if batches is not None and _encodes_one_by_one(obj) and not is_opted_out():
        for number, ids in enumerate(await _asked(batches, obj.text)):
            obj[number].input_ids = ids
    async for answer in original(manager, obj, *args):
        yield answer


async def encoded(manager: Any, texts: list[str], request: Any) -> list[list[int]]:
    """The ids of texts, as SGLang would make them.

    Args:
        request: of the client, see `TextBatches.ask`.

    Raises:
        StockPathTaken: this manager's texts are SGLang's to encode.
    """
    batches = _batches_of(manager)
    if batches is None or not _has_texts(texts):
        raise StockPathTaken(StockReason.UNUSUAL_INPUT)
    return await batches.ask(texts, request)


async def _asked(batches: TextBatches[list[int]], texts: list[str]) -> list[list[int]]:
    """The ids of texts that SGLang's own code waits for, or the tokenizer's own error.

    Raises:
        ServerBusyError: too many wait already (HTTP 429).
    """
    try:
        return await batches.ask(texts)
    except ServerBusyError as error:
        batches.metrics.record_error(end_by(error).counted)
        raise with_status(error, current_request()) from error


def _batches_of(manager: Any) -> TextBatches[list[int]] | None:
    return getattr(manager, _ATTRIBUTE, None)


def _encodes_one_by_one(obj: Any) -> bool:
    """Whether SGLang would encode the texts of a list, and one after the other."""
    if not isinstance(obj, GenerateReqInput) or obj.input_ids is not None:
        return False
    at_once = get_serving().enable_tokenizer_batch_encode or obj.parallel_sample_num > 1
    return not at_once and isinstance(obj.text, list) and _has_texts(obj.text)


def _has_texts(texts: Any) -> bool:
    if isinstance(texts, list):
        return bool(texts) and all(isinstance(text, str) for text in texts)
    return isinstance(texts, str)
