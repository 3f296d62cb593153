"""Calls for vectors that hooks took over from SGLang, on stand-ins for its manager."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.io_struct import EmbeddingReqInput

from sglang_prefill_ext.border.tokenizer_manager import embed_hooks
from sglang_prefill_ext.border.tokenizer_manager.call_context import CallContext
from sglang_prefill_ext.errors import PackedForwardError, RequestError
from sglang_prefill_ext.frontend.embed.embed_frontend import EmbedFrontend
from sglang_prefill_ext.frontend.options import TIMEOUT_HEADER
from sglang_prefill_ext.frontend.packed_path import PackedPath
from tests.unit.frontend.links import StubLink, answer_at_once, path_of, stub_answer

TIMEOUT_MS = 10_000.0


class Manager:
    model_config = SimpleNamespace(
        hf_config=SimpleNamespace(architectures=["Qwen3ForSequenceClassification"])
    )

    def __init__(self) -> None:
        self.lora_registry = self
        self.on_resolving: Callable[[], None] = lambda: None

    async def _validate_and_resolve_lora(self, request: Any) -> None:
        request.lora_id = "id"
        self.on_resolving()

    async def release(self, _id: str) -> None:
        pass

    def _validate_for_matryoshka_dim(self, _call: Any) -> None:
        pass


def server_with(manager: Manager, path: PackedPath) -> Any:
    records = SimpleNamespace(keeping=lambda *_about: nullcontext(SimpleNamespace()))
    return SimpleNamespace(manager=manager, path=path, records=records)


@pytest.mark.parametrize("places", [None, [0, 1]], ids=["last", "places"])
async def test_no_call_that_has_its_adapter_waits_in_a_pause(places: list[int] | None) -> None:
    """SGLang unloads adapters in a pause, too, and waits until no request has them."""
    link, manager = StubLink(), Manager()
    path = path_of(link)
    answer_at_once(link, path.exchange, lambda _rows: stub_answer("failed"))
    server = server_with(manager, path)
    request = EmbeddingReqInput(input_ids=[5, 6], lora_path="a", token_indices_to_pool=places)

    manager.on_resolving = link.is_open.clear
    asked = server, EmbedFrontend(path), request, CallContext(None)
    vectors = embed_hooks.embed(lambda *_call: pytest.fail("left to SGLang"), *asked)
    with pytest.raises(PackedForwardError):
        await asyncio.wait_for(anext(vectors), 10)
    assert len(link.sent) == 1
    assert link.admitted == 0


async def test_a_call_that_waits_for_its_adapter_is_under_way() -> None:
    """Else it could not be aborted by its name, and SGLang would end without it."""
    link, manager = StubLink(), Manager()
    link.is_open.clear()
    server, names = server_with(manager, path := path_of(link)), []

    def keep(_request: Any, _prompts: int, _contents: Any, own: list[str], _priority: Any) -> Any:
        names.extend(own)
        return nullcontext(SimpleNamespace())

    server.records.keeping = keep
    request = EmbeddingReqInput(input_ids=[5, 6], lora_path="a", rid="mine")
    asked = server, EmbedFrontend(path), request, CallContext(None)
    task = asyncio.ensure_future(anext(embed_hooks.embed(pytest.fail, *asked)))
    await asyncio.sleep(0.1)
    assert (names, link.admitted) == (["mine"], 0)
    task.cancel()


async def test_sglang_says_which_adapter_is_unknown_and_the_call_is_counted() -> None:
    def refuse() -> None:
        raise ValueError("never loaded")

    link, manager = StubLink(), Manager()
    manager.on_resolving = refuse
    server = server_with(manager, path := path_of(link))
    request = EmbeddingReqInput(input_ids=[5, 6], lora_path="b")
    asked = server, EmbedFrontend(path), request, CallContext(None)
    with pytest.raises(RequestError) as refused:
        await anext(embed_hooks.embed(pytest.fail, *asked))
    assert str(refused.value) == "never loaded"
    assert path.metrics.as_dict()["requests"] == {"refused": 1}


async def test_the_timeout_of_a_call_that_waits_for_its_adapter_begins_once() -> None:
    link, manager = StubLink(), Manager()
    link.is_open.clear()
    path = path_of(link)
    answer_at_once(link, path.exchange, lambda _rows: stub_answer("failed"))
    server = server_with(manager, path)
    request = EmbeddingReqInput(input_ids=[5, 6], lora_path="adapter")
    context = CallContext(SimpleNamespace(headers={TIMEOUT_HEADER: f"{TIMEOUT_MS:.0f}"}))
    asked = server, EmbedFrontend(path), request, context
    vectors = embed_hooks.embed(lambda *_call: pytest.fail("left to SGLang"), *asked)
    task = asyncio.ensure_future(anext(vectors))
    await asyncio.sleep(0.1)
    ended_ms = time.time() * 1e3
    link.is_open.set()
    with pytest.raises(PackedForwardError):
        await task
    (options,) = link.options
    assert options.deadline_ms is not None
    assert options.deadline_ms < ended_ms + TIMEOUT_MS
