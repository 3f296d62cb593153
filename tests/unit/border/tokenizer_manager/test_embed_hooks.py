"""Calls for vectors that hooks took over from SGLang, on stand-ins for its manager."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.io_struct import EmbeddingReqInput

from sglang_prefill_ext.border.tokenizer_manager import embed_hooks
from sglang_prefill_ext.border.tokenizer_manager.call_context import CallContext
from sglang_prefill_ext.errors import PackedForwardError
from sglang_prefill_ext.frontend.embed.embed_frontend import EmbedFrontend
from sglang_prefill_ext.frontend.options import TIMEOUT_HEADER
from tests.unit.frontend.links import StubLink, answer_at_once, path_of, stub_answer

TIMEOUT_MS = 10_000.0


class Manager:
    model_config = SimpleNamespace(hf_config=SimpleNamespace(architectures=["LlamaModel"]))

    def __init__(self) -> None:
        self.lora_registry = self

    async def _validate_and_resolve_lora(self, request: Any) -> None:
        request.lora_id = "id"

    async def release(self, _id: str) -> None:
        pass

    def _validate_for_matryoshka_dim(self, _call: Any) -> None:
        pass


async def test_the_timeout_of_a_call_that_waits_for_its_adapter_begins_once() -> None:
    link, manager = StubLink(), Manager()
    link.is_open.clear()
    path = path_of(link)
    answer_at_once(link, path.exchange, lambda _rows: stub_answer("failed"))
    records = SimpleNamespace(keeping=lambda *_about: nullcontext(SimpleNamespace()))
    server: Any = SimpleNamespace(manager=manager, path=path, records=records)
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
