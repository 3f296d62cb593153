"""Large answers of ``/v1/embeddings`` leave the event loop to others."""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_prefill_ext.frontend.call_stats import served_prompts
from sglang_prefill_ext.frontend.embed.embed_frontend import Embedded
from sglang_prefill_ext.frontend.worker import Worker
from tests.unit.frontend.links import answered_meanwhile

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's, about kernels that this machine lacks
    from sglang_prefill_ext.border.http_server import embeddings_route


async def test_a_large_answer_is_written_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def packed(_manager: Any, call: Any, *_args: Any) -> tuple[Embedded, None]:
        count = len(call.prompts)
        vectors = [[0.5] * 10_000] * count
        return Embedded(vectors, served_prompts([1] * count, []), 10_000 * count), None

    monkeypatch.setattr(embeddings_route, "packed_vectors", packed)
    manager = SimpleNamespace(model_path="m")
    frontend = SimpleNamespace(makes_numbers=False, answers=Worker("test"))

    async def ask(count: int) -> Any:
        body = json.dumps({"model": "m", "input": ["text"] * count}).encode()
        content = await embeddings_route._answer(manager, frontend, body, None)  # type: ignore[arg-type]
        return json.loads(content or "null")["data"]

    found = await answered_meanwhile(
        ask(33), lambda: ask(2), embeddings_route, "answer_body", monkeypatch
    )
    assert [each["embedding"] for each in found] == [[0.5] * 10_000] * 33
    assert [each["index"] for each in found] == list(range(33))
